"""/healthz: is all well? /jsz: there is no JetStream."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.protocols.nats.monitoring import errors
from broker.protocols.nats.monitoring.options import HealthzOptions, JszOptions, PageError
from broker.protocols.nats.monitoring.text import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.nats.views import ServerView

_OK: Final = 200
_BAD_REQUEST: Final = 400
_FAILED: Final = 500
_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True)
class Health:
    """An answer, with its status for HTTP."""

    page: dict[str, Any]
    code: int  # what requests in the system account are told
    status: int  # over HTTP: details are always a success


def healthz(
    server: ServerView, options: HealthzOptions, broken: Callable[[], str | None]
) -> Health:
    """`broken` says what else is wrong with this process, or None."""
    if options.stream and not options.account:
        return _wrong(options, _BAD_REQUEST, "error", "BAD_REQUEST", errors.STREAM_ALONE)
    if options.consumer and not options.stream:
        return _wrong(options, _BAD_REQUEST, "error", "BAD_REQUEST", errors.CONSUMER_ALONE)
    if server.lame or server.starting:
        text = errors.NOT_READY.format("server")
        return _wrong(options, _FAILED, "error", "CONNECTION", text)
    problem = broken()
    if problem is not None:
        # of the kinds that Go programs know, the one that speaks of stored messages
        return _wrong(options, _UNAVAILABLE, "unavailable", "JETSTREAM", problem)
    return Health({"status": "ok"}, _OK, _OK)


def _wrong(options: HealthzOptions, code: int, status: str, kind: str, text: str) -> Health:
    if options.details:
        return Health({"status": "error", "errors": [{"type": kind, "error": text}]}, code, _OK)
    return Health({"status": status, "error": text}, code, code)


def jsz(server: ServerView, options: JszOptions) -> dict[str, Any]:
    """What a server says that has JetStream switched off."""
    if options.leader_only:
        raise PageError(errors.NOT_LEADER)
    return {
        "server_id": server.server_id,
        "now": rfc3339(time.time_ns()),
        "disabled": True,
        "config": {"max_memory": 0, "max_storage": 0},
        "memory": 0,
        "storage": 0,
        "reserved_memory": 0,
        "reserved_storage": 0,
        "accounts": 0,
        "ha_assets": 0,
        "api": {"total": 0, "errors": 0},
        "streams": 0,
        "consumers": 0,
        "messages": 0,
        "bytes": 0,
    }
