"""Who was there, as nats-streaming-server keeps it: clients.dat and subs.dat, see stan_files.py."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.importers import limits
from broker.protocols.stan.store import ClientRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLIENTS, SUBS = "clients.dat", "subs.dat"
VERSION = struct.Struct("<I")
HEAD = struct.Struct("<II")  # length, crc
_KNOWN_VERSION = 1
_CLIENT_KINDS, _SUB_KINDS = range(1, 3), range(1, 6)
_NEW, _CHANGED, _GONE, _ACKED, _SENT = 1, 2, 3, 4, 5


class Problem(NamedTuple):
    """Bytes that were not taken over."""

    file: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: offset {self.offset}: {self.reason}"


class SourceError(Exception):
    """The folder cannot be read as a whole."""

    def __init__(self, text: str, damaged: Problem | None = None) -> None:
        super().__init__(text if damaged is None else str(damaged))
        self.damaged = damaged  # it is what its name says, but does not read


@dataclass
class Sub:
    """A subscription, and where it stands."""

    number: int
    client_id: str
    queue: str  # of a durable group with the durable name before it
    inbox: str
    ack_inbox: str
    max_in_flight: int
    ack_wait: int
    durable: str
    last_sent: int
    is_closed: bool
    unacked: set[int] = field(default_factory=set)


def read_clients(folder: Path, problems: list[Problem]) -> dict[str, ClientRecord]:
    """Those that had not closed, by id."""
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
    """The subscriptions of a channel, in the order in which they were made.

    Where records do not read, what no record says to have been acked counts as unacked.
    """
    subs: dict[int, Sub] = {}
    told: dict[int, tuple[int, set[int]]] = {}  # last sent when it was made; sequences named since
    before = len(problems)
    for kind, found in _typed(folder / channel / SUBS, _SUB_KINDS, problems):
        number = _number(found, 1)
        known = subs.get(number)
        if kind in (_NEW, _CHANGED):
            fresh = _sub(found)
            if kind == _CHANGED and known is not None:
                fresh.unacked = known.unacked
            else:
                told[number] = (fresh.last_sent, set())
            subs[number] = fresh
        elif known is None:
            continue
        elif kind == _GONE:
            del subs[number]
        else:
            sequence = _number(found, 2)
            told[number][1].add(sequence)
            if kind == _SENT:
                known.last_sent = max(known.last_sent, sequence)
                known.unacked.add(sequence)
            else:
                known.unacked.discard(sequence)
    if len(problems) > before:
        _doubt(subs, told)
    return [subs[number] for number in sorted(subs)]


def _doubt(subs: dict[int, Sub], told: dict[int, tuple[int, set[int]]]) -> None:
    """Records are missing: what was sent but is named by none of them may be unacked."""
    groups: dict[object, list[Sub]] = {}
    for sub in subs.values():
        groups.setdefault(sub.queue or sub.number, []).append(sub)
    for members in groups.values():
        named = set().union(*(told[sub.number][1] for sub in members))
        first = min(told[sub.number][0] for sub in members) + 1
        last = max(sub.last_sent for sub in members)
        members[0].unacked |= set(range(first, last + 1)) - named


def _sub(found: dict[int, Any]) -> Sub:
    queue = text(found, 3)
    is_durable_group = queue and _number(found, 10)  # its durable name stands in the group's alone
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
    """Records that say of what kind they are: (kind, fields)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        problems.append(Problem(str(path), 0, f"{error.strerror}: nothing of it is known"))
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
        again = next((i for i in range(at + 1, len(data)) if _typed_record(data, i, kinds)), None)
        if again is None:
            reason = torn(data[at:])
            problems.append(Problem(str(path), at, f"{reason}; {len(data) - at} bytes not read"))
            return
        reason = f"a record does not read; {again - at} bytes passed over"
        problems.append(Problem(str(path), at, reason))
        at = again


def _typed_record(data: bytes, at: int, kinds: range) -> tuple[int, dict[int, Any], int] | None:
    """Kind, fields and size of the record that begins there, if one does."""
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


# --- what all files have in common


def wrong_version(data: bytes) -> str:
    """Why a file that begins so cannot be read; empty = it can."""
    if len(data) < VERSION.size:
        return "the file ends before its version"
    (version,) = VERSION.unpack_from(data)
    if version != _KNOWN_VERSION:
        return f"file version {version}; this build reads {_KNOWN_VERSION}"
    return ""


def torn(rest: bytes) -> str:
    """What the end of a file is that does not read."""
    return "a record is cut off or damaged" if rest.strip(b"\0") else "zeros follow"


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
            raise ValueError("a field that makes no sense")
        found[tag >> 3] = body[at : at + number]
        at += number
    return found


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(body) or shift > 63:
            raise ValueError("a number is cut off")
        byte = body[at]
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return number, at


def text(found: dict[int, Any], number: int) -> str:
    """A field that is a text."""
    return _bytes(found, number).decode("utf-8", "replace")


def _bytes(found: dict[int, Any], number: int) -> bytes:
    value = found.get(number, b"")
    return value if isinstance(value, bytes) else b""


def _number(found: dict[int, Any], number: int) -> int:
    value = found.get(number, 0)
    return value if isinstance(value, int) else 0
