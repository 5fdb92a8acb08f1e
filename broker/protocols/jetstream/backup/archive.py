"""Unpacks a snapshot into the files of a stream of nats-server (see stored.py).

A snapshot is a stream of S2 with one of two contents:

    a tar of these files                            nats-server 2.10 to 2.14, and this server
    NATSARC1, then entries until one of zeros       nats-server 2.15
        name length, time, seq, headers length, body length: varints, the time signed
        name, headers, body

Entries without a seq are `state.json` and `consumers/NAME`; the others are messages, with their
subjects as names. An archive has no configuration of the stream: the request has it.
"""

from __future__ import annotations

import io
import re
import shutil
import tarfile
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from broker.base.units import SECOND
from broker.net.s2 import CompressionError, decompress
from broker.protocols.jetstream import limits
from broker.protocols.jetstream.backup.stored import (
    META,
    META_SUM,
    STATE,
    Pending,
    State,
    encode_state,
    meta_files,
)
from broker.protocols.jetstream.blocks.records import BlockWriter, sum_key
from broker.protocols.jetstream.structs import time_text

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from broker.protocols.jetstream.structs import StreamConfig

_MAGIC: Final = b"NATSARC1"
_CHUNK_MAX: Final = 8 << 20  # bytes of an S2 chunk
_NAME_MAX: Final = 64 << 10
_MESSAGE_MAX: Final = 64 << 20
_TAR_NAME: Final = re.compile(
    r"meta\.(inf|sum)|msgs/(\d{1,18}\.blk|index\.db)"
    r"|obs/(?!\.\.?/)[^/\0]{1,255}/(meta\.inf|meta\.sum|o\.dat)"
)
_CONSUMER_NAME: Final = re.compile(r"[^\s./\\*>\0]{1,255}")


class Original(NamedTuple):
    """Properties of the stream of which a snapshot was made."""

    name: str  # may differ from the name of the restored stream
    last_seq: int  # the last seq that was used; 0 = only the files have it


class _Content(io.RawIOBase):
    """The decompressed content of a stream of S2. ValueError: it is damaged, or too long."""

    def __init__(self, file: BinaryIO, bytes_max: int) -> None:
        self._file = file
        self._left = bytes_max
        self._decoded = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        while not self._decoded:
            head = self._file.read(4)
            if not head:
                return 0
            size = int.from_bytes(head[1:4], "little")
            if size > _CHUNK_MAX:
                raise CompressionError("a chunk is too long")
            self._decoded = memoryview(decompress(head + self._file.read(size)))
            self._left -= len(self._decoded)
            if self._left < 0:
                raise ValueError("it is larger than the space for streams")
        n = min(len(room), len(self._decoded))
        room[:n] = self._decoded[:n]
        self._decoded = self._decoded[n:]
        return n


def unpack(path: Path, folder: Path, config: StreamConfig, bytes_max: int) -> Original:
    """Unpack the snapshot at `path` into a new folder. `bytes_max`: the limit of its content.

    `config`: of the restored stream. This waits for the disk: call it in a thread. ValueError: the
    snapshot is damaged or too large; OSError.
    """
    folder.mkdir()
    with path.open("rb") as file:
        content = io.BufferedReader(_Content(file, bytes_max), limits.JS_SNAPSHOT_PIECE)
        if content.peek(len(_MAGIC))[: len(_MAGIC)] != _MAGIC:
            return _unpack_tar(content, folder)
        content.read(len(_MAGIC))
        try:
            return _Entries(content, folder, config).unpack()
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"an entry is invalid: {problem!r}") from None


def _unpack_tar(content: io.BufferedReader[_Content], folder: Path) -> Original:
    try:
        with tarfile.open(fileobj=content, mode="r|") as tar:
            for entry in tar:
                source = tar.extractfile(entry) if entry.isreg() else None
                if source is None or not _TAR_NAME.fullmatch(entry.name):
                    continue
                target = folder / entry.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as to:
                    shutil.copyfileobj(source, to, limits.JS_SNAPSHOT_PIECE)
    except tarfile.TarError as problem:
        raise ValueError(f"it is not a snapshot: {problem}") from None
    try:
        name = msgspec.json.decode((folder / META).read_bytes())["name"]
    except (FileNotFoundError, KeyError, TypeError):
        raise ValueError("it has no configuration of a stream") from None
    if not isinstance(name, str):
        raise ValueError("its stream has no name")
    return Original(name, 0)


class _Entries:
    """Unpacks the entries of an archive."""

    def __init__(
        self, content: io.BufferedReader[_Content], folder: Path, config: StreamConfig
    ) -> None:
        self.content = content
        self.folder = folder
        self.config = config
        self.created = time_text(time.time_ns())
        self.last_seq = self.number = 0
        self.writer = self._block()

    def _block(self) -> BlockWriter:
        self.number += 1
        return BlockWriter(sum_key(f"{self.config.name}-{self.number}"))

    def unpack(self) -> Original:
        name = self.config.name
        self._save(
            "", meta_files(name, {"Created": self.created, **msgspec.to_builtins(self.config)})
        )
        (self.folder / "msgs").mkdir()
        while True:
            size, stamp, seq, headers, body = (self._read_number() for _ in range(5))
            if not size and not seq:
                break
            if size > _NAME_MAX or headers + body > _MESSAGE_MAX:
                raise ValueError("an entry is too large")
            title = self._read(size)
            if seq:
                moment = stamp >> 1 ^ -(stamp & 1)
                self.writer.add(seq, moment, title, self._read(headers), self._read(body))
                self.last_seq = max(self.last_seq, seq)
                if len(self.writer) >= limits.JS_SNAPSHOT_BLOCK:
                    self._end_block()
                    self.writer = self._block()
            else:
                self._save_entry(title.decode(), self._read(headers + body))
        self._end_block()
        return Original(name, self.last_seq)

    def _end_block(self) -> None:
        (self.folder / "msgs" / f"{self.number}.blk").write_bytes(self.writer.take())

    def _read_number(self) -> int:
        value = shift = 0
        while True:
            byte = self._read(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")

    def _read(self, n: int) -> bytes:
        data = self.content.read(n)
        if len(data) < n:
            raise ValueError("it is cut off")
        return data

    def _save_entry(self, title: str, text: bytes) -> None:
        page = msgspec.json.decode(text)
        if title == "state.json":
            self.last_seq = max(self.last_seq, int(page.get("last_seq", 0)))
            return
        name = title.removeprefix("consumers/")
        if name == title or not _CONSUMER_NAME.fullmatch(name):
            return
        folder = f"obs/{name}"
        meta = {"Created": self.created, "Name": name, **page["config"]}
        self._save(folder, meta_files(f"{self.config.name}/{name}", meta))
        if page.get("state") is not None:
            state = encode_state(_state_of(page["state"]))
            (self.folder / folder / STATE).write_bytes(state)

    def _save(self, folder: str, texts: tuple[bytes, bytes]) -> None:
        target = self.folder / folder
        target.mkdir(parents=True, exist_ok=True)
        (target / META).write_bytes(texts[0])
        (target / META_SUM).write_bytes(texts[1])


def _state_of(page: dict[str, Any]) -> State:
    """The state of a consumer from its entry in an archive."""
    again = page.get("redelivered") or {}
    pending = [
        Pending(
            int(seq),
            int(each["Sequence"]),
            int(each["Timestamp"]) // SECOND,
            1 + int(again.get(seq, 0)),
        )
        for seq, each in sorted((page.get("pending") or {}).items(), key=lambda item: int(item[0]))
    ]
    floor, delivered = page.get("ack_floor") or {}, page.get("delivered") or {}
    return State(
        (int(floor.get("stream_seq", 0)), int(floor.get("consumer_seq", 0))),
        (int(delivered.get("stream_seq", 0)), int(delivered.get("consumer_seq", 0))),
        pending,
    )
