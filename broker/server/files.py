"""The files that a configuration names, checked without a server.

It is separate because only `check-config` does this: a server reads the files itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from broker.bulk.access import TokenFileError, read_tokens
from broker.console.access import UsersFileError, read_file
from broker.net.openssl import TlsError
from broker.net.tls import TlsFiles, server_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.config.config import Config


def unusable(config: Config) -> Iterator[tuple[str, str, Exception]]:
    """Section, key and problem of the files that can be read and are not what they should be."""
    checks: list[tuple[str, str, Callable[[], object]]] = []
    for name, each in config.sections():
        if getattr(each, "tls_cert", ""):
            own = TlsFiles(each.tls_cert, each.tls_key)
            checks.append((name, "tls_cert", partial(server_context, own)))
            for key in ("tls_client_ca", "tls_root_ca_file"):
                if authorities := getattr(each, key, ""):
                    both = replace(own, authorities=authorities)
                    checks.append((name, key, partial(server_context, both)))
    bulk, console = config.bulk, config.console
    if bulk.token_file:
        checks.append(("bulk", "token_file", partial(read_tokens, Path(bulk.token_file))))
    if console.users_file:
        users = partial(read_file, Path(console.users_file), "HASH")
        checks.append(("console", "users_file", users))
    if console.token_file:
        tokens = partial(read_file, Path(console.token_file), "TOKEN")
        checks.append(("console", "token_file", tokens))
    for section, key, check in checks:
        try:
            check()
        except (OSError, TlsError, TokenFileError, UsersFileError) as problem:
            yield section, key, problem
