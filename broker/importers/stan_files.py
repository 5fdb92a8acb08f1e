"""Reads the file store of nats-streaming-server, without changing it.

    server.dat              identity of the server: one record
    clients.dat             clients that connected (1) and closed (2)
    CHANNEL/msgs.N.dat      messages, a slice of the channel in each file
    CHANNEL/msgs.N.idx      per message: sequence u64, offset u64, time i64, size u32, crc u32
    CHANNEL/subs.dat        subscriptions: new (1), changed (2), removed (3), acked (4), sent (5)

    file:    version u32, records
    record:  length u32, crc u32 (CRC-32), protobuf of `length` bytes; if records are of several
                 kinds, the kind is the highest byte of the length

All numbers are little-endian. The original removes slices of the oldest messages as a whole, so
messages that limits have dropped may still be in the files. A damaged record is skipped: the next
one is found by the bytes with which every record of that file begins.

The subscriptions become cursors and records of Twinwire. Subscriptions of clients that had not
closed are imported, as the original does when it restarts: the client continues, or does not answer
heartbeats and is closed.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from broker.base.problem import Problem
from broker.importers import limits
from broker.protocols.stan import stan_pb2 as pb
from broker.protocols.stan.clients import random_name
from broker.protocols.stan.store import ClientRecord, SubRecord
from broker.protocols.stan.subscriptions import cursor_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator
    from pathlib import Path

SERVER = "server.dat"
CLIENTS, SUBS = "clients.dat", "subs.dat"
VERSION = struct.Struct("<I")
HEAD = struct.Struct("<II")  # length, crc
_KNOWN_VERSION = 1
_CLIENT_KINDS, _SUB_KINDS = range(1, 3), range(1, 6)
_NEW, _CHANGED, _REMOVED, _ACKED, _SENT = 1, 2, 3, 4, 5
_INDEX = struct.Struct("<QQqII")  # sequence, offset, time, size, crc
_CRC = struct.Struct("<I")
_CIPHERS = (1, 2)  # first byte of an encrypted body; it also has 12 bytes of nonce and 16 of tag
_ENCRYPTED_MIN = 1 + 12 + 16


class SourceError(Exception):
    """The folder cannot be read as a whole."""

    def __init__(self, text: str, damaged: Problem | None = None) -> None:
        super().__init__(text if damaged is None else str(damaged))
        self.damaged = damaged  # the file belongs to a store, but is damaged


@dataclass
class Sub:
    """A subscription and its position."""

    number: int
    client_id: str
    queue: str  # for a durable group: DURABLE:GROUP
    inbox: str
    ack_inbox: str
    max_in_flight: int
    ack_wait: int
    durable: str
    last_sent: int
    is_closed: bool
    unacked: set[int] = field(default_factory=set)


class Stored(NamedTuple):
    """One message of a slice."""

    sequence: int
    timestamp_ns: int
    reply: str
    body: bytes
    size: int  # bytes in the file


class Info(NamedTuple):
    """The identity of the server; `node_id` is that of a cluster member."""

    cluster_id: str
    node_id: str


# --- records of any file


def wrong_version(data: bytes) -> str:
    """Why a file that begins with `data` cannot be read; empty = it can."""
    if len(data) < VERSION.size:
        return "the file ends before its version"
    (version,) = VERSION.unpack_from(data)
    if version != _KNOWN_VERSION:
        return f"file version {version}; this build reads {_KNOWN_VERSION}"
    return ""


def torn(rest: bytes) -> str:
    """The reason for an unreadable end of a file."""
    return "a record is incomplete or damaged" if rest.strip(b"\0") else "zeros follow"


def fields(body: bytes) -> dict[int, Any]:
    """The fields of a flat message: numbers and bytes. ValueError."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        number, at = _varint(body, at)
        if tag & 7 == 0:
            found[tag >> 3] = number
            continue
        if tag & 7 != 2 or at + number > len(body):
            raise ValueError("an invalid field")
        found[tag >> 3] = body[at : at + number]
        at += number
    return found


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(body) or shift > 63:
            raise ValueError("a number is incomplete")
        byte = body[at]
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return number, at


def text(found: dict[int, Any], number: int) -> str:
    """A text field."""
    return _bytes(found, number).decode("utf-8", "replace")


def _bytes(found: dict[int, Any], number: int) -> bytes:
    value = found.get(number, b"")
    return value if isinstance(value, bytes) else b""


def _number(found: dict[int, Any], number: int) -> int:
    value = found.get(number, 0)
    return value if isinstance(value, int) else 0


# --- the folder


def read_info(folder: Path) -> Info:
    """The identity of a store. SourceError: not a file store, or the identity is unreadable."""
    path = folder / SERVER
    try:
        with path.open("rb") as file:
            data = file.read(limits.IMPORT_READ_BYTES)
    except FileNotFoundError:
        raise SourceError(
            f"{folder} is not a file store of nats-streaming-server: {SERVER} is missing (stores of"
            " the kinds MEMORY and SQL cannot be imported)"
        ) from None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    wrong = wrong_version(data)
    if wrong:
        raise SourceError(f"{path}: {wrong}")
    body = data[VERSION.size + HEAD.size :]
    head = data[VERSION.size : VERSION.size + HEAD.size]
    if head != HEAD.pack(len(body), zlib.crc32(body)):
        reason = "the record is unreadable: the identity of the server is unknown"
        raise SourceError("", Problem(str(path), VERSION.size, reason))
    found = fields(body)
    return Info(text(found, 1), text(found, 9))


def channel_names(folder: Path, problems: list[Problem]) -> list[str]:
    """Channels of a store. SourceError."""
    names = []
    try:
        for entry in sorted(folder.iterdir()):
            if not entry.is_dir():
                continue
            if (entry / SUBS).exists() or any(entry.glob("msgs.*.dat")):
                names.append(entry.name)
            else:
                problems.append(Problem(str(entry), 0, "not a channel: not imported"))
    except OSError as error:
        raise SourceError(f"{error.filename}: {error.strerror}") from None
    return names


def slices(folder: Path, channel: str, problems: list[Problem]) -> list[Path]:
    """The files of a channel's messages, oldest first."""
    found = []
    for path in (folder / channel).glob("msgs.*.dat"):
        number = path.name[len("msgs.") : -len(".dat")]
        if number.isascii() and number.isdigit():
            found.append((int(number), path))
        else:
            problems.append(Problem(str(path), 0, "its name has no number: not read"))
    return [path for _, path in sorted(found)]


class Indexed(NamedTuple):
    """The content of a channel's indexes."""

    messages: int
    last: int
    complete: bool  # whether each slice has a readable index


def indexed(folder: Path, channel: str) -> Indexed:
    """Read the indexes of a channel."""
    count = last = 0
    complete = True
    for path in slices(folder, channel, []):
        index = _index(path)
        if index is None:
            complete = False
        elif index:
            count += len(index) // _INDEX.size
            last = max(last, _INDEX.unpack_from(index, len(index) - _INDEX.size)[0])
    return Indexed(count, last, complete)


def _index(path: Path) -> memoryview | None:
    """The records of the index of a slice; None if they are unreadable."""
    try:
        data = path.with_suffix(".idx").read_bytes()
    except OSError:
        return None
    if wrong_version(data) or (len(data) - VERSION.size) % _INDEX.size:
        return None
    records = memoryview(data)[VERSION.size :]
    for at in range(0, len(records), _INDEX.size):
        (crc,) = _CRC.unpack_from(records, at + _INDEX.size - _CRC.size)
        if zlib.crc32(records[at : at + _INDEX.size - _CRC.size]) != crc:
            return None
    return records


def looks_encrypted(folder: Path, channel: str) -> bool:
    """Whether the oldest or the newest messages are encrypted.

    The nonce of the cipher counts messages: its last 8 bytes are at most the sequence number.
    """
    paths = slices(folder, channel, [])
    for path in {*paths[:1], *paths[-1:]}:
        seen = 0
        for stored in _slice(path, channel, []):
            if not stored.body:
                continue
            body = stored.body
            nonce = int.from_bytes(body[5:13], "big")
            if body[0] not in _CIPHERS or len(body) < _ENCRYPTED_MIN or not (
                0 < nonce <= stored.sequence
            ):  # fmt: skip
                break
            seen += 1
            if seen == limits.IMPORT_CIPHER_SAMPLE:
                break
        else:
            if seen:
                return True
            continue
        if seen == limits.IMPORT_CIPHER_SAMPLE:
            return True
    return False


# --- messages


def messages(folder: Path, channel: str, problems: list[Problem]) -> Iterator[Stored]:
    """The readable messages of a channel, in the order of their sequence numbers."""
    last = 0
    for path in slices(folder, channel, problems):
        for stored in _slice(path, channel, problems):
            if stored.sequence <= last:
                reason = f"sequence {stored.sequence} is repeated: not imported"
                problems.append(Problem(str(path), 0, reason))
                continue
            last = stored.sequence
            yield stored


def _slice(path: Path, channel: str, problems: list[Problem]) -> Iterator[Stored]:
    try:
        with path.open("rb", buffering=limits.IMPORT_READ_BYTES) as file:
            yield from _records(path, file, channel, problems)
    except OSError as error:
        reason = error.strerror or os.strerror(errno.EIO)
        problems.append(Problem(str(path), 0, f"{reason}; the rest is not read"))


def _records(path: Path, file: Any, channel: str, problems: list[Problem]) -> Iterator[Stored]:
    size = os.fstat(file.fileno()).st_size
    wrong = wrong_version(file.read(VERSION.size))
    if wrong:
        problems.append(Problem(str(path), 0, wrong))
        return
    leftover = _Leftovers(_index(path))
    at = VERSION.size
    while at < size:
        stored = _message(file.read(HEAD.size), file, size - at, channel)
        if stored is not None:
            if not leftover.at(at, stored.sequence):
                yield stored
            at += stored.size
            continue
        next_at = _next_message(file, at, size, channel)
        file.seek(at)
        if next_at < 0:
            reason = torn(file.read(limits.IMPORT_READ_BYTES))
            problems.append(Problem(str(path), at, f"{reason}; {size - at} bytes not read"))
            return
        reason = f"a message is unreadable; {next_at - at} bytes skipped"
        problems.append(Problem(str(path), at, reason))
        file.seek(next_at)
        at = next_at


class _Leftovers:
    """Messages that were written just before a crash and are not in the index.

    Later messages have the same sequence numbers.
    """

    def __init__(self, index: memoryview | None) -> None:
        self.entries = iter(() if index is None else _INDEX.iter_unpack(index))
        self.entry = next(self.entries, None)

    def at(self, offset: int, sequence: int) -> bool:
        """Whether the message at that offset is one of these; called in the order of the file."""
        while self.entry is not None and self.entry[1] < offset:
            self.entry = next(self.entries, None)
        return self.entry is not None and self.entry[1] > offset and self.entry[0] <= sequence


def _message(head: bytes, file: Any, remaining: int, channel: str) -> Stored | None:
    """The message that begins with `head` and continues in the file, if there is one. `remaining`:
    bytes of the file from the head on."""
    if len(head) < HEAD.size:
        return None
    length, crc = HEAD.unpack(head)
    if not 0 < length <= remaining - HEAD.size:
        return None
    body = file.read(length)
    if zlib.crc32(body) != crc:
        return None
    message = pb.MsgProto()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return None
    if message.subject != channel or message.sequence == 0:
        return None
    return Stored(
        message.sequence, message.timestamp, message.reply, message.data, length + HEAD.size
    )


def _next_message(file: Any, at: int, size: int, channel: str) -> int:
    """The offset of the next readable message after `at`; -1 = none.

    Every message begins with the tag of its sequence number, 1 to 10 bytes of it, and the name of
    the channel.
    """
    name = channel.encode()
    mark = b"\x12" + _encoded(len(name)) + name
    start, ahead = at + 1, 2 + 10 + HEAD.size + len(mark)
    while start < size:
        file.seek(start)
        block: bytes = file.read(limits.IMPORT_READ_BYTES)
        found = block.find(mark)
        while found >= 0:
            for length in range(1, 11):
                begin = start + found - length - 1 - HEAD.size
                if begin > at and _is_message(file, begin, size, channel):
                    return begin
            found = block.find(mark, found + 1)
        if start + len(block) >= size:
            break
        start += max(1, len(block) - ahead)
    return -1


def _is_message(file: Any, at: int, size: int, channel: str) -> bool:
    file.seek(at)
    head = file.read(HEAD.size + 1)
    if len(head) <= HEAD.size or head[-1] != 0x08:  # the tag of the sequence number
        return False
    file.seek(at + HEAD.size)
    return _message(head[:-1], file, size - at, channel) is not None


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# --- clients and subscriptions


def read_clients(folder: Path, problems: list[Problem]) -> dict[str, ClientRecord]:
    """The clients that had not closed, by id."""
    clients: dict[str, ClientRecord] = {}
    for kind, found in _typed(folder / CLIENTS, _CLIENT_KINDS, problems):
        client_id = text(found, 1)
        if kind == _NEW:
            clients[client_id] = ClientRecord(
                client_id,
                text(found, 2),
                _bytes(found, 3).hex(),
                _number(found, 4),
                _number(found, 5),
                _number(found, 6),
            )
        else:
            clients.pop(client_id, None)
    return clients


def read_subs(folder: Path, channel: str, problems: list[Problem]) -> list[Sub]:
    """The subscriptions of a channel, in the order of their creation.

    If records are damaged, messages count as unacked unless a record has their acknowledgement.
    """
    subs: dict[int, Sub] = {}
    # By subscription: `last_sent` of its first record, and the sequence numbers in later records.
    named: dict[int, tuple[int, set[int]]] = {}
    before = len(problems)
    for kind, found in _typed(folder / channel / SUBS, _SUB_KINDS, problems):
        number = _number(found, 1)
        known = subs.get(number)
        if kind in (_NEW, _CHANGED):
            sub = _sub(found)
            if kind == _CHANGED and known is not None:
                sub.unacked = known.unacked
            else:
                named[number] = (sub.last_sent, set())
            subs[number] = sub
        elif known is None:
            continue
        elif kind == _REMOVED:
            del subs[number]
        else:
            sequence = _number(found, 2)
            named[number][1].add(sequence)
            if kind == _SENT:
                known.last_sent = max(known.last_sent, sequence)
                known.unacked.add(sequence)
            else:
                known.unacked.discard(sequence)
    if len(problems) > before:
        _add_unrecorded(subs, named)
    return [subs[number] for number in sorted(subs)]


def _add_unrecorded(subs: dict[int, Sub], named: dict[int, tuple[int, set[int]]]) -> None:
    """Mark sent messages that are in no record as unacked, because their records may be missing."""
    groups: dict[object, list[Sub]] = {}
    for sub in subs.values():
        groups.setdefault(sub.queue or sub.number, []).append(sub)
    for members in groups.values():
        known = set().union(*(named[sub.number][1] for sub in members))
        first = min(named[sub.number][0] for sub in members) + 1
        last = max(sub.last_sent for sub in members)
        members[0].unacked |= set(range(first, last + 1)) - known


def _sub(found: dict[int, Any]) -> Sub:
    queue = text(found, 3)
    is_durable_group = queue and _number(found, 10)  # the durable name is then only in `queue`
    return Sub(
        number=_number(found, 1),
        client_id=text(found, 2),
        queue=queue,
        inbox=text(found, 4),
        ack_inbox=text(found, 5),
        max_in_flight=_number(found, 6),
        ack_wait=_number(found, 7),
        durable=queue.partition(":")[0] if is_durable_group else text(found, 8),
        last_sent=_number(found, 9),
        is_closed=bool(_number(found, 11)),
    )


def _typed(
    path: Path, kinds: range, problems: list[Problem]
) -> Iterator[tuple[int, dict[int, Any]]]:
    """Records with a kind: (kind, fields)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        problems.append(Problem(str(path), 0, f"{error.strerror}: its content is unknown"))
        return
    wrong = wrong_version(data)
    if wrong:
        problems.append(Problem(str(path), 0, wrong))
        return
    at = VERSION.size
    while at < len(data):
        record = _typed_record(data, at, kinds)
        if record is not None:
            kind, found, size = record
            yield kind, found
            at += size
            continue
        next_at = next((i for i in range(at + 1, len(data)) if _typed_record(data, i, kinds)), None)
        if next_at is None:
            reason = torn(data[at:])
            problems.append(Problem(str(path), at, f"{reason}; {len(data) - at} bytes not read"))
            return
        reason = f"a record is unreadable; {next_at - at} bytes skipped"
        problems.append(Problem(str(path), at, reason))
        at = next_at


def _typed_record(data: bytes, at: int, kinds: range) -> tuple[int, dict[int, Any], int] | None:
    """Kind, fields and size of the record at that offset, if there is one."""
    if at + HEAD.size > len(data) or data[at + 3] not in kinds:
        return None
    word, crc = HEAD.unpack_from(data, at)
    length = word & 0xFFFFFF
    if length > limits.IMPORT_STATE_RECORD_MAX:
        return None
    body = data[at + HEAD.size : at + HEAD.size + length]
    if len(body) != length or zlib.crc32(body) != crc:
        return None
    try:
        return word >> 24, fields(body), HEAD.size + length
    except ValueError:
        return None


# --- cursors of subscriptions


@dataclass
class ImportedCursor:
    """A cursor and the subscriptions that use it."""

    cursor: str
    next_seq: int
    unacked: set[int]
    records: list[SubRecord]


@dataclass(frozen=True)
class Extent:
    """The messages of a channel."""

    channel: str
    first: int
    end: int  # sequence number of the next message


def cursors_of(
    extent: Extent, subs: Iterable[Sub], clients: Container[str], first_number: int
) -> list[ImportedCursor]:
    """The cursors of a channel. `clients`: ids of the clients that exist; `first_number`: number of
    the first record."""
    number = itertools.count(first_number).__next__
    groups = _readers(subs, clients)
    return [_cursor(extent, members, imported, number) for members, imported in groups]


def _readers(
    subs: Iterable[Sub], clients: Container[str]
) -> Iterator[tuple[list[Sub], list[tuple[Sub, bool]]]]:
    """Groups of subscriptions that share a cursor. Each has all its subscriptions, and those to
    import with whether they are offline."""
    groups: dict[tuple[str, ...], list[Sub]] = {}
    for sub in subs:
        if sub.queue:
            groups.setdefault(("q", sub.queue), []).append(sub)
        elif sub.durable:
            groups[("d", sub.client_id, sub.durable)] = [sub]
        else:
            groups[("p", str(sub.number))] = [sub]
    for members in groups.values():
        live = [sub for sub in members if not sub.is_closed and sub.client_id in clients]
        if live:
            yield members, [(sub, False) for sub in live]
        elif any(sub.durable for sub in members):
            # The most advanced member of a group represents it.
            yield members, [(max(members, key=lambda sub: sub.last_sent), True)]


def _cursor(
    extent: Extent,
    members: list[Sub],
    imported: list[tuple[Sub, bool]],
    number: Callable[[], int],
) -> ImportedCursor:
    sub = imported[0][0]
    if sub.queue:
        name = cursor_name("q", sub.queue)
    elif sub.durable:
        name = cursor_name("d", sub.client_id, sub.durable)
    else:
        name = cursor_name("p", random_name())
    sent = max(member.last_sent for member in members)
    next_seq = min(max(sent + 1, extent.first), extent.end)
    unacked = set().union(*(member.unacked for member in members))
    return ImportedCursor(
        name,
        next_seq,
        {sequence for sequence in unacked if extent.first <= sequence < next_seq},
        [_record(extent.channel, name, sub, number(), offline) for sub, offline in imported],
    )


def _record(channel: str, cursor: str, sub: Sub, number: int, offline: bool) -> SubRecord:
    return SubRecord(
        number,
        channel,
        cursor,
        sub.client_id,
        sub.inbox,
        sub.ack_inbox,
        sub.durable,
        sub.queue,
        max(1, sub.max_in_flight),
        max(1, sub.ack_wait),
        offline,
    )
