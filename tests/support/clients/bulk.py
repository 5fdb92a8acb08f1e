"""The bulk API from outside: frames of docs/reference/bulk-api.md, read in plain Python."""

from __future__ import annotations

import http.client
import json
import struct
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from broker.engine.log.record import crc32c
from support.clients.http import Answer
from support.servers.processes import Address

DAMAGED, MISSING = 1, 2
TIMEOUT_S = 30.0
_HEAD = struct.Struct("<8sIIQQ16sQII")
_RECORD = struct.Struct("<IIQqqHHI")


class Record(NamedTuple):
    """One record of a frame."""

    seq: int
    timestamp_ns: int
    not_before_ns: int
    subject: bytes
    reply: bytes
    headers: bytes
    body: bytes


class Frame(NamedTuple):
    """The body of a range."""

    first: int
    next: int
    log_id: bytes
    gaps: list[tuple[int, int, int]]  # from, to, reason
    records: list[Record]

    @property
    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records]


def read_frame(raw: bytes, *, complete: bool = True) -> Frame:
    """Parse a frame, and check all checksums and bounds. `complete`: no seq may be left out."""
    magic, count, gaps_count, first, behind, log_id, size, flags, crc = _HEAD.unpack_from(raw)
    assert (magic, flags) == (b"TWRANGE1", 0)
    tables = gaps_count * 24 + (count + 1) * 4
    assert crc == crc32c(raw[64 : 64 + tables], crc32c(raw[:60]))
    data_at = (64 + tables + 7) & ~7
    assert not any(raw[64 + tables : data_at])
    assert len(raw) == data_at + size
    assert size % 8 == 0
    gaps = []
    for number in range(gaps_count):
        start, end, reason, zero = struct.unpack_from("<QQII", raw, 64 + number * 24)
        assert zero == 0
        gaps.append((start, end, reason))
    offsets = struct.unpack_from(f"<{count + 1}I", raw, 64 + gaps_count * 24)
    assert offsets[count] == size
    salt = crc32c(log_id)
    records = [read_record(raw, data_at + offset, salt) for offset in offsets[:count]]
    frame = Frame(first, behind, log_id, gaps, records)
    check_order(frame, complete=complete)
    return frame


def read_record(raw: bytes, at: int, salt: int) -> Record:
    length, crc, seq, stamp, not_before, subject, reply, packed = _RECORD.unpack_from(raw, at)
    assert crc == crc32c(raw[at + 8 : at + length], salt)
    parts, begin = [], at + 40
    for size in (subject, reply, packed & 0xFFFFFF):
        parts.append(raw[begin : begin + size])
        begin += size
    return Record(seq, stamp, not_before, parts[0], parts[1], parts[2], raw[begin : at + length])


def check_order(frame: Frame, *, complete: bool) -> None:
    """Each seq of [first, next) is a record or in a gap, none is both, all in order; of a stream
    those that are neither are deleted messages."""
    spans = [(record.seq, record.seq + 1) for record in frame.records]
    spans += [(start, end) for start, end, _ in frame.gaps]
    at = frame.first
    for start, end in sorted(spans):
        assert at <= start < end
        assert start == at or not complete
        at = end
    assert at == frame.next or not complete
    assert at <= frame.next


class BulkClient:
    """A client with one keep-alive connection."""

    def __init__(self, address: Address, token: str = "", **more: Any) -> None:
        kind = http.client.HTTPSConnection if "context" in more else http.client.HTTPConnection
        self.link = kind(*address, timeout=TIMEOUT_S, **more)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        **query: object,
    ) -> Answer:
        """Send a request below /bulk/v1/. A body that is not bytes is encoded as JSON."""
        target = f"/bulk/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        self.link.request(method, target, raw, {**self.headers, **(headers or {})})
        response = self.link.getresponse()
        found = {key.lower(): value for key, value in response.getheaders()}
        return Answer(response.status, found, response.read())

    def topic(self, name: str) -> Any:
        """The entry of a topic in the list."""
        answer = self.ask("GET", "topics", subscribe=name)
        assert answer.status == 200, answer.body
        return answer.json["topics"][0]

    def await_next(self, name: str, behind: int) -> Any:
        """Wait until the records before this seq can be read."""
        while (found := self.topic(name))["next"] < behind:
            pass
        return found

    def range(self, name: str, start: int, **query: object) -> Frame:
        """Fetch one frame."""
        answer = self.ask("GET", f"range/{quote(name, safe='')}", start=start, **query)
        assert answer.status == 200, answer.body
        return read_frame(answer.body, complete=not name.startswith("js."))

    def all_of(self, name: str, start: int, behind: int, **query: object) -> list[Frame]:
        """Fetch frames up to a seq."""
        found = []
        while start < behind:
            found.append(self.range(name, start, end=behind, **query))
            assert found[-1].next > start
            start = found[-1].next
        return found

    def close(self) -> None:
        self.link.close()

    def __enter__(self) -> BulkClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
