"""The file store of nats-streaming-server, read and never written.

    server.dat              who the server was: one record
    clients.dat             clients that came (1) and went (2)
    CHANNEL/msgs.N.dat      messages, a slice of the channel in each file
    CHANNEL/msgs.N.idx      per message: sequence u64, offset u64, time i64, size u32, crc u32
    CHANNEL/subs.dat        subscriptions: new (1), changed (2), gone (3), acked (4), sent (5)

    file:    version u32, records
    record:  length u32, crc u32 (CRC-32), protobuf of `length` bytes; where records are of several
             kinds the kind is the highest byte of the length

All numbers are little-endian. Slices of the oldest messages are removed as a whole, so messages
that limits have dropped may still be there. A record that does not read is passed over: the next
one is looked for by what every record of that file begins with.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from broker.importers import limits
from broker.importers.stan_state import (
    HEAD,
    SUBS,
    VERSION,
    Problem,
    SourceError,
    fields,
    text,
    torn,
    wrong_version,
)
from broker.protocols.stan import stan_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = "server.dat"
_INDEX = struct.Struct("<QQqII")  # sequence, offset, time, size, crc
_CRC = struct.Struct("<I")
_CIPHERS = (1, 2)  # first byte of an encrypted body; 12 of the nonce follow, and 16 of a tag
_ENCRYPTED_MIN = 1 + 12 + 16


class Stored(NamedTuple):
    """One message of a slice."""

    sequence: int
    timestamp_ns: int
    reply: str
    body: bytes
    size: int  # bytes in the file


class Info(NamedTuple):
    """Who the server was; `node_id` is that of a member of a cluster."""

    cluster_id: str
    node_id: str


# --- the folder


def read_info(folder: Path) -> Info:
    """SourceError when this is no file store, or its identity does not read."""
    path = folder / SERVER
    try:
        with path.open("rb") as file:
            data = file.read(limits.IMPORT_READ_BYTES)
    except FileNotFoundError:
        raise SourceError(
            f"{folder} is no file store of nats-streaming-server: {SERVER} is missing (stores of"
            " the kinds MEMORY and SQL are not read)"
        ) from None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    wrong = wrong_version(data)
    if wrong:
        raise SourceError(f"{path}: {wrong}")
    body = data[VERSION.size + HEAD.size :]
    head = data[VERSION.size : VERSION.size + HEAD.size]
    if head != HEAD.pack(len(body), zlib.crc32(body)):
        reason = "the record does not read: who the server was is not known"
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
                problems.append(Problem(str(entry), 0, "is no channel: not taken over"))
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
            problems.append(Problem(str(path), 0, "has no number: not read"))
    return [path for _, path in sorted(found)]


class Indexed(NamedTuple):
    """What the indexes of a channel say."""

    messages: int
    last: int
    complete: bool  # each slice has one that reads


def indexed(folder: Path, channel: str) -> Indexed:
    """How many messages there are, and the sequence of the last one."""
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
    """The records of the index of a slice; None when they do not read."""
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
    """Whether what the oldest or the newest messages hold has been encrypted.

    The nonce of a cipher counts the messages: its last 8 bytes are no more than the sequence.
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
    """What a channel keeps, in the order of its sequences; what does not read is left out."""
    last = 0
    for path in slices(folder, channel, problems):
        for stored in _slice(path, channel, problems):
            if stored.sequence <= last:
                reason = f"sequence {stored.sequence} comes again: not taken over"
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
        again = _next_message(file, at, size, channel)
        file.seek(at)
        if again < 0:
            reason = torn(file.read(limits.IMPORT_READ_BYTES))
            problems.append(Problem(str(path), at, f"{reason}; {size - at} bytes not read"))
            return
        reason = f"a message does not read; {again - at} bytes passed over"
        problems.append(Problem(str(path), at, reason))
        file.seek(again)
        at = again


class _Leftovers:
    """Messages that were written just before a crash and never got into the index.

    Their sequences were given again to those that did.
    """

    def __init__(self, index: memoryview | None) -> None:
        self.entries = iter(() if index is None else _INDEX.iter_unpack(index))
        self.entry = next(self.entries, None)

    def at(self, offset: int, sequence: int) -> bool:
        """Whether the message there is one; asked in the order of the file."""
        while self.entry is not None and self.entry[1] < offset:
            self.entry = next(self.entries, None)
        return self.entry is not None and self.entry[1] > offset and self.entry[0] <= sequence


def _message(head: bytes, file: Any, left: int, channel: str) -> Stored | None:
    """The message that begins with `head` and goes on in the file, if one does."""
    if len(head) < HEAD.size:
        return None
    length, crc = HEAD.unpack(head)
    if not 0 < length <= left - HEAD.size:
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
    """Where the next good message behind `at` begins; -1 = nowhere.

    All begin with their sequence, of 1 to 10 bytes behind its tag, and the name of the channel.
    """
    name = channel.encode()
    mark = b"\x12" + _varint(len(name)) + name
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
    if len(head) <= HEAD.size or head[-1] != 0x08:  # the tag of the sequence
        return False
    file.seek(at + HEAD.size)
    return _message(head[:-1], file, size - at, channel) is not None


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
