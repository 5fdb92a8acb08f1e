"""The state that all accounts of one server share: settings, capacity, counters. The parts of
JetStream get it when they are created; they do not import `jetstream`, which has the accounts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.protocols.jetstream import limits
from broker.protocols.nats.system.envelope import EventIds

if TYPE_CHECKING:
    from pathlib import Path

    from broker.engine.engine import Engine
    from broker.protocols.access import Access
    from broker.protocols.jetstream.config import JetStreamConfig
    from broker.protocols.jetstream.origins.registry import Origins
    from broker.protocols.nats.server import NatsServer

_SHARE: Final = (3, 4)  # 3/4 of the memory and of the free space are used by default


class ReservingAccount(Protocol):
    """An account whose streams reserve space."""

    def reserved(self, storage: str, without: str = "") -> int:
        """The bytes that its streams reserve, except the stream `without`."""


class JetStreamContext:
    """The state that all accounts share."""

    def __init__(
        self,
        config: JetStreamConfig,
        nats: NatsServer,
        engine: Engine,
        folder: Path | None,
        access: Access,
    ) -> None:
        """`folder`: for the files of configurations; None = everything is in memory. `access`: the
        permissions of [bridge]."""
        self.config = config
        self.nats = nats
        self.engine = engine
        self.folder = folder
        self.access = access
        self.max_memory = config.max_memory or _memory()
        self.max_storage = config.max_storage or _storage(folder)
        self.reserving: dict[str, ReservingAccount] = {}  # all accounts, by name
        self.origins: dict[str, Origins] = {}  # of the accounts that have streams, by name
        self.ids = EventIds()
        self.api_total = self.api_errors = 0

    @property
    def server_name(self) -> str:
        """The name of the server, the leader of all streams."""
        return self.nats.server_name

    @property
    def level(self) -> int:
        """The API level that clients see."""
        return limits.JS_API_LEVEL

    @property
    def domain(self) -> str:
        """The domain of the server; empty without one."""
        return self.config.domain

    def reserved(self, storage: str, account: str = "", stream: str = "") -> int:
        """The bytes that streams reserve on this server, except the given stream."""
        return sum(
            each.reserved(storage, stream if name == account else "")
            for name, each in self.reserving.items()
        )

    def capacity(self, storage: str) -> int:
        """The bytes that the streams of this server may have in this storage."""
        return self.max_storage if storage == "file" else self.max_memory

    def client_info(self, session: Any, account: str) -> dict[str, Any]:
        """The client of a request, for advisories."""
        if session is None:
            return {"acc": account}
        from broker.protocols.nats.auth.client_info import client_info

        return client_info(session, {"server": self.server_name})

    def info(self) -> dict[str, Any]:
        """The fields of INFO."""
        found: dict[str, Any] = {"jetstream": True}
        if self.level:
            found["api_lvl"] = self.level
        if self.domain:
            found["domain"] = self.domain
        return found


def _memory() -> int:
    part, whole = _SHARE
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * part // whole


def _storage(folder: Path | None) -> int:
    if folder is None:
        return _memory()
    here = folder
    while not here.exists() and here != here.parent:
        here = here.parent
    part, whole = _SHARE
    found = os.statvfs(here)
    return found.f_bavail * found.f_frsize * part // whole
