"""Operator mode in a configuration: trusted operators, and the resolver of account tokens."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from broker.base.patterns import lazy_pattern
from broker.base.units import COUNT_MAX
from broker.protocols.nats import limits
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.conf.fields import Block, Mistakes, kind_of
from broker.protocols.nats.conf.tls import optional_tls
from broker.protocols.nats.settings import Resolver

if TYPE_CHECKING:
    from broker.protocols.nats.conf.text import Value

_OPERATORS: Final = ("operator", "operators", "root_operator", "root_operators", "root", "roots")
_MEMORY: Final = lazy_pattern(r"MEM", re.IGNORECASE)
_URL: Final = lazy_pattern(r'URL(?:\(\s*"?([^\s"]*)"?\s*\))?', re.IGNORECASE)


class OperatorMode:
    """The top-level keys of operator mode."""

    def __init__(self, root: Block) -> None:
        self.mistakes: Mistakes = root.mistakes
        self.position = root.peek(*_OPERATORS)  # of the operators, if present
        self.operators: list[tokens.Token] = []
        for text, value in root.each_text(*_OPERATORS):
            self.operator(text, value)
        resolver = self.read_resolver(
            root.take("resolver", "account_resolver", "accounts_resolver")
        )
        tls = optional_tls(root, "resolver_tls", server=False)
        preload = self.preload(root.take("resolver_preload"))
        pinned = root.texts("resolver_pinned_accounts")
        trusted = self.trusted(root)
        if resolver is None:
            resolver = self.operator_resolver() or Resolver(kind="none")
        if self.position is not None:
            for key in pinned:
                if not nkeys.is_public(nkeys.ACCOUNT, key):
                    reason = f"resolver_pinned_accounts: {key!r} is not the key of an account"
                    root.wrong(reason, "resolver_pinned_accounts")
        self.sentinel = self.default_sentinel(root)
        self.resolver = replace(
            resolver,
            operators=tuple(token.text for token in self.operators),
            preload=preload,
            trusted_keys=trusted,
            pinned_accounts=frozenset(pinned),
            tls=tls,
        )

    @property
    def used(self) -> bool:
        """Whether operator mode is configured."""
        return self.position is not None or bool(self.resolver.trusted_keys)

    def default_sentinel(self, root: Block) -> str:
        """The token for clients that present none. Any client may use it, so it must be a bearer
        token. That is checked here only for tokens signed by the account's own key; for a token of
        a signing key it may depend on the scope.
        """
        text = root.text("default_sentinel")
        if not text:
            return ""
        if self.position is None:
            root.wrong("default_sentinel: needs operators and accounts", "default_sentinel")
            return ""
        try:
            body: tokens.UserBody = tokens.decode(text, "user").body
        except tokens.Invalid:
            root.wrong("default_sentinel: not a valid token of a user", "default_sentinel")
            return ""
        if not body.bearer_token and not body.issuer_account:
            root.wrong("default_sentinel: has to be a bearer token", "default_sentinel")
        return text

    # --- trusted operators

    def operator(self, text: str, value: Value) -> None:
        """Read an operator: a token, or a file with one."""
        token = text
        try:
            token = Path(text).read_text("ascii")
        except (OSError, ValueError) as error:
            if not text.startswith(tokens.PREFIX):
                reason = error.strerror if isinstance(error, OSError) else "cannot be read"
                return self.mistakes.add(value, f"operator: {text}: {reason}")
        try:
            found = tokens.decode(tokens.undecorated(token), "operator")
        except tokens.Invalid as problem:
            return self.mistakes.add(value, f"operator: {problem}")
        reason = _too_new(found.body.assert_server_version)
        if reason:
            self.mistakes.add(value, f"operator: {reason}")
        return self.operators.append(found)

    def trusted(self, root: Block) -> tuple[str, ...]:
        found = []
        for key, value in root.each_text("trusted", "trusted_keys"):
            found.append(key)
            if not nkeys.is_public(nkeys.OPERATOR, key):
                self.mistakes.add(value, f"trusted: {key!r} is not the public key of an operator")
        if found and self.position is not None:
            reason = "trusted: cannot be combined with operators"
            root.wrong(reason, "trusted", "trusted_keys")
        return tuple(found)

    def system_account(self, configured: str, position: Value | None) -> str:
        """The configured system account, or that of the first operator."""
        named_accounts: list[str] = [token.body.system_account for token in self.operators]
        if configured and any(named_accounts) and configured not in named_accounts:
            assert position is not None
            self.mistakes.add(position, "system_account: is not that of the operator")
        if configured or not named_accounts:
            return configured
        if (
            not named_accounts[0]
            and self.resolver.kind in ("full", "cache")
            and self.position is not None
        ):
            reason = "names no system account, which this resolver needs: set system_account"
            self.mistakes.add(self.position, f"operator: {reason}")
        return named_accounts[0]

    # --- resolvers

    def operator_resolver(self) -> Resolver | None:
        """The account server named by the token of the single operator."""
        if len(self.operators) != 1:
            return None
        url: str = self.operators[0].body.account_server_url
        return Resolver(kind="url", url=url.rstrip("/") + "/accounts/") if url else None

    def read_resolver(self, value: Value | None) -> Resolver | None:
        if value is None:
            return None
        if isinstance(value.it, str):
            return self.named(value.it, value)
        if isinstance(value.it, dict):
            return self.folder(Block(value, self.mistakes, "resolver"))
        self.mistakes.add(value, f"resolver: expected a string or a map, got {kind_of(value.it)}")
        return None

    def named(self, text: str, value: Value) -> Resolver | None:
        if _MEMORY.search(text):
            return Resolver(kind="memory")
        match = _URL.search(text)
        if match is None:
            self.mistakes.add(value, 'resolver: expected MEMORY, URL("...") or a map')
            return None
        url = match[1] or ""
        try:
            valid = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
        except ValueError:
            valid = False
        if not valid:
            self.mistakes.add(value, "resolver: no URL that can be asked")
            return None
        return Resolver(kind="url", url=url.rstrip("/") + "/")

    def folder(self, block: Block) -> Resolver | None:
        kind = block.text("type").lower()
        if kind in ("mem", "memory"):
            return Resolver(kind="memory")
        if kind not in ("full", "cache"):
            block.wrong(f"resolver: expected type full or cache, got {kind!r}", "type")
            return None
        directory = block.text("dir")
        reason = _wrong_folder(directory)
        if reason:
            block.wrong(f"resolver: {reason}", "dir")
        for key in ("interval", "allow_delete", "hard_delete") if kind == "cache" else ("ttl",):
            if block.has(key):
                block.wrong(f"resolver: {key} is not for type {kind}", key)
        default = Resolver()
        limit = block.number("limit", high=COUNT_MAX)
        if kind == "cache":
            limit = limit if limit > 0 else limits.NATS_RESOLVER_CACHE
        if block.has("hard_delete") and not block.has("allow_delete"):
            block.wrong("resolver: hard_delete needs allow_delete", "hard_delete")
        result = Resolver(
            kind=kind,
            directory=directory,
            allow_delete=block.flag("allow_delete"),
            hard_delete=block.flag("hard_delete"),
            interval_ns=block.duration("interval", default=default.interval_ns, seconds="no"),
            limit=max(limit, 0),
            ttl_ns=block.duration("ttl", default=0, seconds="no"),
            timeout_ns=block.duration("timeout", default=default.timeout_ns, seconds="no"),
        )
        for key, entry in block.rest():
            self.mistakes.note(entry, f'"{key}" has no meaning in resolver')
        return result

    def preload(self, value: Value | None) -> tuple[tuple[str, str], ...]:
        if value is None:
            return ()
        if not isinstance(value.it, dict):
            self.mistakes.add(value, f"resolver_preload: expected a map, got {kind_of(value.it)}")
            return ()
        found = []
        for key, entry in value.it.items():
            token = entry.it
            if not isinstance(token, str):
                self.mistakes.add(
                    entry, f"resolver_preload: expected a token, got {kind_of(token)}"
                )
                continue
            try:
                tokens.decode(token, "account")
            except tokens.Invalid as problem:
                self.mistakes.add(entry, f"resolver_preload: {problem}")
            found.append((key, token))
        return tuple(found)


def _wrong_folder(directory: str) -> str:
    """Why the folder cannot be used; it need not exist yet if it can be created."""
    if not directory or "\0" in directory:
        return "dir is missing"
    path = Path(directory)
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        if not (path.is_dir() and os.access(path, os.W_OK)):
            return f"{directory} is not a folder that can be written to"
    except (OSError, ValueError):
        return f"{directory} cannot be accessed"
    return ""


def _too_new(asserted: str) -> str:
    if not asserted:
        return ""
    parts = asserted.split(".")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() and len(p) < 10 for p in parts):
        return f"asks for the invalid server version {asserted!r}"
    ours = tuple(map(int, limits.NATS_VERSION.split(".")))
    if tuple(map(int, parts)) > ours:
        return f"asks for a server of version {asserted}, this is {limits.NATS_VERSION}"
    return ""
