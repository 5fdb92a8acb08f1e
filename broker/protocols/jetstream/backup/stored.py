"""Reads the files of a stream of nats-server: configuration, messages, consumers.

    <stream>/meta.inf, .sum, .key                   configuration and its checksum
             msgs/N.blk, N.key                      messages
             obs/<consumer>/meta.inf, .sum, .key, o.dat

The folders have the names of the stream and the consumers. The files are not changed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from broker.base.problem import Problem
from broker.net.s2 import CompressionError, decompress
from broker.protocols.jetstream.blocks.ciphers import AssetKey, CipherError
from broker.protocols.jetstream.blocks.index import Reader, check_sum, read_index
from broker.protocols.jetstream.blocks.records import (
    Block,
    Tombstones,
    highway,
    sum_key,
)
from broker.protocols.jetstream.structs import ConsumerConfig, GoStruct, StreamConfig

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T", bound=GoStruct)

META: Final = "meta.inf"
META_SUM: Final = "meta.sum"
STATE: Final = "o.dat"  # of a consumer
_KEY: Final = "meta.key"
_INDEX: Final = "index.db"
_NO_INDEX: Final = "without it messages that limits have removed may be back"
_STATE_MAGIC: Final = 22
_STATE_VERSION: Final = 2
_COMPRESSED: Final = b"cmp"
_S2: Final = 1
_TAIL: Final = 8  # uncompressed bytes at the end of a block


class SourceError(Exception):
    """The stream or consumer cannot be imported."""


@dataclass(slots=True)
class Pending:
    """A delivery that was not acknowledged."""

    seq: int
    consumer_seq: int
    sent_s: int
    deliveries: int = 1


@dataclass(slots=True)
class State:
    """The state of a consumer; `floor`, `delivered`: (stream seq, consumer seq)."""

    floor: tuple[int, int] = (0, 0)
    delivered: tuple[int, int] = (0, 0)
    pending: list[Pending] = field(default_factory=list)


@dataclass(slots=True)
class FoundConsumer:
    """A consumer. Without a state it begins where its configuration defines."""

    config: ConsumerConfig
    created: str
    state: State | None


@dataclass(slots=True)
class BlockRange:
    """The range of seqs of one block."""

    path: Path
    first: int  # seq of its first message; 0 = it has none
    last: int  # highest seq of its records


class FoundStream:
    """One stream of the source."""

    def __init__(
        self, folder: Path, account: str, key: str, problems: list[Problem], name: str = ""
    ) -> None:
        """Reads the configuration. `name`: of the stream, if the folder has another name.
        SourceError: the configuration cannot be used."""
        self.folder = folder
        self.account = account
        self.name = name or folder.name
        self.server_key = key
        self.problems = problems
        self.tombstones = Tombstones()
        page = self._read_meta(folder, self.name, self.name)
        self.created = str(page.pop("Created", "") or page.pop("created", ""))
        self.config = self._config(page, StreamConfig, folder / META)
        if self.config.name != self.name:
            raise SourceError(f"{folder / META}: this is stream {self.config.name!r}")

    # --- configurations

    def _read_meta(self, folder: Path, name: str, context: str) -> dict[str, Any]:
        """The content of a meta.inf. SourceError."""
        path = folder / META
        try:
            data = path.read_bytes()
            stated = (folder / META_SUM).read_text().strip()
            if _checksum(name, data) != stated:
                self.problem(path, 0, "its checksum is wrong: it is used as it is")
            page = msgspec.json.decode(self._decrypted(folder, context, data))
        except (OSError, ValueError) as problem:
            raise SourceError(f"{path}: {problem}") from None
        if not isinstance(page, dict):
            raise SourceError(f"{path}: this is not a configuration")
        return page

    def _decrypted(self, folder: Path, context: str, data: bytes) -> bytes:
        """Decrypt a small file of a stream or consumer. CipherError, OSError."""
        key = folder / _KEY
        if not key.exists():
            return data
        return self._open_key(key, context).open(data)

    def _open_key(self, path: Path, context: str) -> AssetKey:
        if not self.server_key:
            raise CipherError("it is encrypted: the key of the server is needed")
        return AssetKey(self.server_key, self.account, context, path.read_bytes())

    def _config(self, page: dict[str, Any], kind: type[T], path: Path) -> T:
        """The configuration without settings that this server does not know. SourceError."""
        known = set(kind.__struct_fields__)
        strange = sorted(page.keys() - known)
        if strange:
            self.problem(path, 0, f"unknown settings are left out: {', '.join(strange)}")
        try:
            return msgspec.convert({k: v for k, v in page.items() if k in known}, kind)
        except msgspec.ValidationError as problem:
            raise SourceError(f"{path}: {problem}") from None

    def problem(self, path: Path, offset: int, reason: str) -> None:
        """Record a problem of the import."""
        self.problems.append(Problem(str(path), offset, reason))

    # --- messages

    def block_paths(self) -> list[Path]:
        """The blocks, oldest first."""
        found = [path for path in (self.folder / "msgs").glob("*.blk") if path.stem.isdigit()]
        return sorted(found, key=lambda path: int(path.stem))

    @property
    def bytes(self) -> int:
        """Size of all blocks."""
        return sum(path.stat().st_size for path in self.block_paths())

    def block(self, path: Path, *, verify: bool) -> Block:
        """A block, decrypted and decompressed. CipherError, CompressionError, OSError."""
        data = path.read_bytes()
        key = path.with_suffix(".key")
        if key.exists():
            data = self._open_key(key, f"{self.name}:{path.stem}").block(data)
        if data.startswith(_COMPRESSED):
            data = _decompressed(data)
        return Block(data, sum_key(f"{self.name}-{path.stem}") if verify else None)

    def scan(self, *, verify: bool) -> list[BlockRange]:
        """Read all blocks: the seqs of each, and the tombstones. Problems are recorded."""
        found = []
        paths = self.block_paths()
        for path in paths:
            try:
                block = self.block(path, verify=verify)
            except (OSError, ValueError) as problem:
                self.problem(path, 0, f"{problem}: its messages are not imported")
                continue
            first, last, _ = block.scan(self.tombstones)
            if block.bad:
                torn = path == paths[-1]
                reason = "the end of the last block is torn" if torn else "a record is damaged"
                self.problem(path, block.bad_at, f"{reason}: what follows in it is not imported")
            found.append(BlockRange(path, first, last))
        self._read_index()
        self.tombstones.seal()
        return found

    def _read_index(self) -> None:
        """Read the index: messages that limits have removed are marked as deleted only there."""
        path = self.folder / "msgs" / _INDEX
        try:
            data = check_sum(path.read_bytes(), self.name)
            read_index(self._decrypted(self.folder, self.name, data), self.tombstones)
        except FileNotFoundError:
            config = self.config
            limited = (config.max_msgs, config.max_bytes, config.max_age)
            if max(*limited, config.max_msgs_per_subject) > 0:
                self.problem(path, 0, f"it does not exist: {_NO_INDEX}")
        except (OSError, ValueError) as problem:
            self.problem(path, 0, f"{problem}: {_NO_INDEX}")

    # --- consumers

    def consumers(self) -> list[FoundConsumer]:
        """The consumers whose configuration can be used, without those of mirrors and sources."""
        found = []
        folder = self.folder / "obs"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not (path / META).is_file():
                continue
            try:
                found.append(self._read_consumer(path))
            except SourceError as problem:
                self.problem(path, 0, f"the consumer is not imported: {problem}")
        return [each for each in found if not each.config.direct]

    def _read_consumer(self, folder: Path) -> FoundConsumer:
        context = f"{self.name}.{folder.name}"
        page = self._read_meta(folder, f"{self.name}/{folder.name}", context)
        created = str(page.pop("Created", "") or page.pop("created", ""))
        page["name"] = page.pop("Name", "") or page.get("name", "")
        config = self._config(page, ConsumerConfig, folder / META)
        if config.name != folder.name:
            raise SourceError(f"this is consumer {config.name!r}")
        path = folder / STATE
        state = None
        try:
            data = path.read_bytes()
            if data:  # empty: nothing was delivered yet
                state = decode_state(self._decrypted(folder, context, data))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as problem:
            self.problem(path, 0, f"{problem}: the consumer starts as it is configured")
        return FoundConsumer(config, created, state)


def _checksum(name: str, text: bytes) -> str:
    return struct.pack("<Q", highway(sum_key(name), text)).hex()


def meta_files(name: str, page: dict[str, Any]) -> tuple[bytes, bytes]:
    """The content of meta.inf and meta.sum; `name`: "S" of a stream, "S/C" of its consumer."""
    text = msgspec.json.encode(page)
    return text, _checksum(name, text).encode()


def _decompressed(data: bytes) -> bytes:
    if len(data) < 5 + _TAIL or data[3] != _S2:
        raise CompressionError("a block is compressed in an unknown way")
    at = 4
    while data[at] & 0x80:
        at += 1
        if at >= len(data) - _TAIL:
            raise CompressionError("a block has no length")
    return decompress(memoryview(data)[at + 1 : -_TAIL]) + data[-_TAIL:]


def decode_state(data: bytes) -> State:
    """The content of an o.dat. ValueError."""
    if len(data) < 2 or data[0] != _STATE_MAGIC or data[1] not in (1, 2):
        raise ValueError("this is not the state of a consumer")
    version, numbers = data[1], Reader(data, 2)
    floor_consumer, floor = numbers.unsigned(), numbers.unsigned()
    delivered_consumer, delivered = numbers.unsigned(), numbers.unsigned()
    if version == 1:  # it has the next delivery instead, counted from the floor
        delivered_consumer += max(floor_consumer, 1) - 1
        delivered += max(floor, 1) - 1
    state = State((floor, floor_consumer), (delivered, delivered_consumer))
    count = numbers.unsigned()
    base = numbers.signed() if count else 0
    for _ in range(count):
        seq = floor + numbers.unsigned()
        consumer_seq = floor_consumer + numbers.unsigned() if version > 1 else 0
        state.pending.append(Pending(seq, consumer_seq, base - numbers.signed()))
    again = {}
    for _ in range(numbers.unsigned()):
        seq = floor + numbers.unsigned()
        again[seq] = numbers.unsigned()
    for each in state.pending:
        each.deliveries += again.get(each.seq, 0)
    return state


def encode_state(state: State) -> bytes:
    """The content of an o.dat."""
    out = bytearray((_STATE_MAGIC, _STATE_VERSION))
    (floor, floor_consumer), (delivered, delivered_consumer) = state.floor, state.delivered
    for number in (floor_consumer, floor, delivered_consumer, delivered, len(state.pending)):
        _put_varint(out, number)
    base = max((each.sent_s for each in state.pending), default=0)
    if state.pending:
        _put_varint(out, 2 * base)
    for each in state.pending:
        _put_varint(out, each.seq - floor)
        _put_varint(out, max(0, each.consumer_seq - floor_consumer))
        _put_varint(out, 2 * (base - each.sent_s))
    again = [each for each in state.pending if each.deliveries > 1]
    _put_varint(out, len(again))
    for each in again:
        _put_varint(out, each.seq - floor)
        _put_varint(out, each.deliveries - 1)
    return bytes(out)


def _put_varint(out: bytearray, number: int) -> None:
    """Append a number as a varint."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
