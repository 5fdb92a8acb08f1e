"""`twinwire nats-streaming-server`: the original's flags, files, log lines and exit codes."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.base import logs
from broker.base.gotext import go_quote
from broker.base.redact import redacted
from broker.cli import signals
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server import flags as nats_flags
from broker.cli.dropin.nats_server import process
from broker.cli.dropin.nats_server.command import checked, listen_early, readable
from broker.cli.dropin.nats_server.log import STREAMING, Log, LogError, stamp_now
from broker.cli.dropin.nats_streaming import flags
from broker.cli.dropin.nats_streaming.flags import PROGRAM
from broker.cli.dropin.nats_streaming.settings import (
    Asked,
    Files,
    account_of,
    check,
    problem_of,
    settings_of,
)
from broker.cli.serve import raise_open_files_limit, restrict_umask, until_ended
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.conf.text import ConfErrors
from broker.protocols.nats.settings import ORIGINAL, Settings
from broker.protocols.stan import limits as stan_limits
from broker.server import limits as server_limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


log = logging.getLogger(STREAMING)
VERSION = f"{PROGRAM} version {stan_limits.STAN_VERSION}, nats-server: v{nats_limits.NATS_VERSION}"


def main(args: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    try:
        own, nats, words = flags.read(args)
    except FlagError as error:
        print(redacted(str(error)), file=sys.stderr, flush=True)
        print(flags.usage(), flush=True)
        return server_limits.EXIT_OK  # as the original does
    try:
        if (text := asked_for(nats, words)) is not None:
            print(text, flush=True)
            return server_limits.EXIT_OK
        nats_flags.check(nats)
        if nats.get("jetstream"):
            raise FlagError(errors.FLAG_REFUSED.format("--jetstream", errors.STAN_JETSTREAM))
        if nats.get("signal"):
            process.send(nats["signal"], PROGRAM)
            return server_limits.EXIT_OK
        if nats.get("check") and not nats.get("config"):
            raise FlagError(errors.CHECK_WHAT)
        reads = nats.get("config") or own.get("stan_config")
        with signals.Stoppable() if reads else contextlib.nullcontext():
            asked = everything(flags.sizes(own), nats)
    except (FlagError, ConfErrors) as error:
        print(redacted(str(error)), file=sys.stderr, flush=True)
        return server_limits.EXIT_START_FAILED
    if nats.get("check"):
        for text in asked.remarks:
            print(text, file=sys.stderr)
        line = errors.CHECKED_SHORT.format(PROGRAM, nats["config"])
        print(line, file=sys.stderr, flush=True)
        return server_limits.EXIT_OK
    return serve(asked, own, nats)


def asked_for(nats: Mapping[str, Any], words: Sequence[str]) -> str | None:
    """The text that a flag or word requests instead of a server. FlagError for an unknown word."""
    word = words[0].lower() if words else ""
    if nats.get("version"):
        return VERSION
    if nats.get("help"):
        return flags.usage()
    if nats.get("help_tls"):
        return nats_flags.HELP_TLS
    if word not in ("", "version", "help"):
        raise FlagError(errors.UNKNOWN_WORD.format(go_quote(words[0])))
    return {"version": VERSION, "help": flags.usage()}.get(word)


def read_files(nats_file: str, stan_file: str) -> Files:
    """The content of the files; empty without any. ConfErrors."""
    if not nats_file and not stan_file:
        return Files(ORIGINAL)
    from broker.cli.dropin.nats_streaming import files

    return files.read_files(nats_file, stan_file, os.environ)


def read(own: Mapping[str, Any], nats: Mapping[str, Any]) -> Files:
    """The settings of the files, overridden by the NATS server's flags. FlagError, ConfErrors."""
    paths = nats.get("config", ""), own.get("stan_config", "")
    for path in filter(None, paths):
        readable(path)
    files = read_files(*paths)
    files.settings = checked(nats_flags.apply(files.settings, nats))
    return files


def everything(own: Mapping[str, Any], nats: Mapping[str, Any]) -> Asked:
    """Combine flags and files; flags override. FlagError, ConfErrors."""
    files = read(own, nats)
    both = files.own | dict(own)
    check(both)
    if "SDV" in own:
        both |= {"stan_debug": own["SDV"], "stan_trace": own["SDV"]}
    account = account_of(files.settings, both)
    problem = problem_of(both, files)
    stan = settings_of(both, files, account or "")
    remarks = [text for text, _ in files.warnings]
    remarks += nats_flags.remarks(nats)
    if idle := [*own.get("", ()), *files.idle]:
        remarks.append(errors.STAN_NO_EFFECT.format(", ".join(idle)))
    return Asked(
        settings=files.settings,
        stan=stan,
        folder=Path(both["dir"]) if stan.store == "file" and both.get("dir") else None,
        file=nats.get("config", "") or own.get("stan_config", ""),
        problem=problem,
        remarks=tuple(remarks),
        debug=both.get("stan_debug", False),
        trace=both.get("stan_trace", False),
    )


def serve(asked: Asked, own: Mapping[str, Any], nats: Mapping[str, Any]) -> int:
    """Run until a signal; return the exit code."""
    server_log = Log(PROGRAM)
    try:
        server_log.use(asked.settings)
    except LogError as error:
        print(f"{stamp_now()} {error}", file=sys.stderr, flush=True)
        return server_limits.EXIT_START_FAILED
    level = logging.DEBUG if asked.debug else logging.INFO
    log.setLevel(logs.TRACE if asked.trace else level)
    process.take_name(PROGRAM)
    restrict_umask()
    raise_open_files_limit()

    def again() -> Settings:
        files = read(own, nats)
        for text, _ in files.warnings:
            log.warning("%s", text)
        return files.settings

    if asked.stan.account and not asked.problem:
        listen_early(asked.settings)
    from broker.cli.dropin.nats_streaming.run import StreamingRun

    code = until_ended(StreamingRun(asked, server_log, again).run())
    server_log.close()
    return code
