"""Who the clients and subscriptions are: a file that a restart reads.

    <crc32 of the rest, hex> <JSON array>\\n

A line says what came or went; the last word holds. Where subscriptions stand in their channels is
not here but with the cursors. Lines are written before clients are answered and synced within a
second, so a kill loses nothing and a power cut at most what a client did in its last second: it
connects again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from broker import limits

log = logging.getLogger("broker.stan")

FILE = "clients.state"
VERSION = 1


class ForeignStateError(Exception):
    """The folder belongs to another cluster, or to a version this build does not know."""


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """What is remembered of a client."""

    client_id: str
    hb_inbox: str
    conn_id: str = ""  # hexadecimal
    protocol: int = 0
    ping_interval: int = 0
    ping_max: int = 0


@dataclass(slots=True)
class SubRecord:
    """What is remembered of a subscription."""

    number: int
    channel: str
    cursor: str  # name of its cursor in the channel's log
    client_id: str
    inbox: str
    ack_inbox: str
    durable_name: str
    queue_name: str  # of a durable group with the durable name before it
    max_in_flight: int
    ack_wait: int  # seconds
    offline: bool = False

    @property
    def is_durable(self) -> bool:
        """It stays when its client goes."""
        return bool(self.durable_name)


class Store:
    """The file of one folder; None = nothing outlives the process."""

    def __init__(self, folder: Path | None, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.clients: dict[str, ClientRecord] = {}
        self.subs: dict[int, SubRecord] = {}
        self.problems: list[str] = []
        self._last_number = 0
        self._fd = -1
        self._bytes = self._kept_bytes = 0
        self._dirty = False
        self._syncing: asyncio.Task[None] | None = None
        self._path = None if folder is None else folder / FILE
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._read()
            self._last_number = max(self.subs, default=0)
            self._rewrite()

    # --- what happened; OSError: it is not remembered

    def add_client(self, client: ClientRecord) -> None:
        """It has connected."""
        self._write("client", asdict(client))
        self.clients[client.client_id] = client

    def remove_client(self, client_id: str) -> None:
        """It has closed, or failed."""
        self._write("gone", client_id)
        self.clients.pop(client_id, None)

    def put_sub(self, sub: SubRecord) -> None:
        """A subscription is new, or different."""
        self._write("sub", asdict(sub))
        self.subs[sub.number] = sub
        self._last_number = max(self._last_number, sub.number)

    def remove_sub(self, sub: SubRecord) -> None:
        """It is no more."""
        self._write("unsub", sub.number)
        self.subs.pop(sub.number, None)

    @property
    def next_number(self) -> int:
        """For a new subscription."""
        return self._last_number + 1

    # --- the file

    def _write(self, *entry: Any) -> None:
        if self._path is None:
            return
        line = _line(entry)
        if os.write(self._fd, line) != len(line):
            # what is there does not read; the next start passes over it
            os.write(self._fd, b"\n")
            raise OSError(28, os.strerror(28), str(self._path))
        self._bytes += len(line)
        self._dirty = True
        if self._bytes > max(
            limits.STAN_STATE_BYTES_MIN, limits.STAN_STATE_FACTOR * self._kept_bytes
        ):
            self._rewrite()

    def _rewrite(self) -> None:
        """What holds, and nothing else, in the place of the old file."""
        assert self._path is not None
        lines = [_line(("cluster", VERSION, self.cluster_id))]
        lines += (_line(("client", asdict(client))) for client in self.clients.values())
        lines += (_line(("sub", asdict(sub))) for sub in self.subs.values())
        data = b"".join(lines)
        new = self._path.with_suffix(".new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fdatasync(fd)
            new.replace(self._path)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._bytes = self._kept_bytes = len(data)

    def _read(self) -> None:
        assert self._path is not None
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        unread = 0
        for line in data.splitlines():
            entry = _entry(line)
            if entry is None:
                unread += 1
            else:
                self._apply(entry)
        if unread:
            self._path.with_suffix(".unreadable").write_bytes(data)
            self.problems.append(f"{self._path}: {unread} lines do not read; a copy is kept")

    def _apply(self, entry: list[Any]) -> None:
        match entry:
            case ["cluster", version, name]:
                if version != VERSION:
                    raise ForeignStateError(
                        f"{self._path}: format version {version}; this build reads {VERSION}"
                    )
                if name != self.cluster_id:
                    raise ForeignStateError(
                        f"cluster ID {self.cluster_id!r} does not match {name!r}, whose data"
                        f" are in {self._path}"
                    )
            case ["client", dict() as values]:
                client = ClientRecord(**_known(ClientRecord, values))
                self.clients[client.client_id] = client
            case ["gone", str() as client_id]:
                self.clients.pop(client_id, None)
            case ["sub", dict() as values]:
                sub = SubRecord(**_known(SubRecord, values))
                self.subs[sub.number] = sub
            case ["unsub", int() as number]:
                self.subs.pop(number, None)

    def sync(self) -> None:
        """Bring the file onto the disk, now."""
        if self._fd >= 0:
            os.fdatasync(self._fd)
            self._dirty = False

    def sync_soon(self) -> None:
        """Bring the file onto the disk, in a thread."""
        if self._dirty and self._syncing is None:
            self._dirty = False
            self._syncing = asyncio.create_task(self._sync())

    async def _sync(self) -> None:
        fd = os.dup(self._fd)
        try:
            await asyncio.to_thread(os.fdatasync, fd)
        except OSError as problem:
            log.error("%s: %s", self._path, problem)
            self._dirty = True
        finally:
            os.close(fd)
            self._syncing = None

    async def close(self) -> None:
        """Sync and let go."""
        if self._fd < 0:
            return
        if self._syncing is not None:
            await asyncio.gather(self._syncing, return_exceptions=True)
        await asyncio.to_thread(os.fdatasync, self._fd)
        os.close(self._fd)
        self._fd = -1


def _known(kind: type[ClientRecord | SubRecord], values: dict[str, Any]) -> dict[str, Any]:
    """Those values that the record has a place for."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _line(entry: object) -> bytes:
    body = orjson.dumps(entry)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _entry(line: bytes) -> list[Any] | None:
    body = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(body):
        return None
    entry = orjson.loads(body)
    return entry if isinstance(entry, list) else None
