"""Encode and decode messages of NATS Streaming without a protobuf library.

Independent of the code under test, so that tests compare two implementations.
"""

from __future__ import annotations

from typing import Any, Final

TEXT, BYTES, NUMBER, FLAG = "text", "bytes", "number", "flag"
_MASK: Final = (1 << 64) - 1

Spec = dict[str, tuple[int, str]]

CONNECT: Final[Spec] = {
    "client_id": (1, TEXT),
    "heartbeat_inbox": (2, TEXT),
    "protocol": (3, NUMBER),
    "conn_id": (4, BYTES),
    "ping_interval": (5, NUMBER),
    "ping_max_out": (6, NUMBER),
}
CONNECTED: Final[Spec] = {
    "pub_prefix": (1, TEXT),
    "sub_requests": (2, TEXT),
    "unsub_requests": (3, TEXT),
    "close_requests": (4, TEXT),
    "error": (5, TEXT),
    "sub_close_requests": (6, TEXT),
    "ping_requests": (7, TEXT),
    "ping_interval": (8, NUMBER),
    "ping_max_out": (9, NUMBER),
    "protocol": (10, NUMBER),
    "public_key": (100, TEXT),
}
PING: Final[Spec] = {"conn_id": (1, BYTES)}
PONG: Final[Spec] = {"error": (1, TEXT)}
PUB: Final[Spec] = {
    "client_id": (1, TEXT),
    "guid": (2, TEXT),
    "subject": (3, TEXT),
    "reply": (4, TEXT),
    "data": (5, BYTES),
    "conn_id": (6, BYTES),
    "sha256": (10, BYTES),
}
PUB_ACK: Final[Spec] = {"guid": (1, TEXT), "error": (2, TEXT)}
MESSAGE: Final[Spec] = {
    "sequence": (1, NUMBER),
    "subject": (2, TEXT),
    "reply": (3, TEXT),
    "data": (4, BYTES),
    "timestamp": (5, NUMBER),
    "redelivered": (6, FLAG),
    "redelivery_count": (7, NUMBER),
    "crc32": (10, NUMBER),
}
ACK: Final[Spec] = {"subject": (1, TEXT), "sequence": (2, NUMBER)}
SUBSCRIBE: Final[Spec] = {
    "client_id": (1, TEXT),
    "subject": (2, TEXT),
    "queue": (3, TEXT),
    "inbox": (4, TEXT),
    "max_in_flight": (5, NUMBER),
    "ack_wait": (6, NUMBER),
    "durable": (7, TEXT),
    "start": (10, NUMBER),
    "start_sequence": (11, NUMBER),
    "start_delta": (12, NUMBER),
}
SUBSCRIBED: Final[Spec] = {"ack_inbox": (2, TEXT), "error": (3, TEXT)}
UNSUBSCRIBE: Final[Spec] = {
    "client_id": (1, TEXT),
    "subject": (2, TEXT),
    "inbox": (3, TEXT),
    "durable": (4, TEXT),
}
CLOSE: Final[Spec] = {"client_id": (1, TEXT)}
CLOSED: Final[Spec] = {"error": (1, TEXT)}

NEW, LAST, DELTA, SEQUENCE, FIRST = range(5)  # start positions
_EMPTY: Final[dict[str, Any]] = {TEXT: "", BYTES: b"", NUMBER: 0, FLAG: False}


def encode(spec: Spec, **values: Any) -> bytes:
    """Fields in the order of their numbers; empty ones are omitted."""
    found = bytearray()
    for name, (number, kind) in sorted(spec.items(), key=lambda item: item[1]):
        value = values.pop(name, _EMPTY[kind])
        if value == _EMPTY[kind]:
            continue
        if kind in (TEXT, BYTES):
            raw = value.encode() if isinstance(value, str) else value
            found += _varint(number << 3 | 2) + _varint(len(raw)) + raw
        else:
            found += _varint(number << 3) + _varint(int(value) & _MASK)
    assert not values, values
    return bytes(found)


def decode(spec: Spec, data: bytes) -> dict[str, Any]:
    """Every field of the spec; one that is not in it is a mistake of the server."""
    found = {name: _EMPTY[kind] for name, (_, kind) in spec.items()}
    names = {number: (name, kind) for name, (number, kind) in spec.items()}
    at = 0
    while at < len(data):
        key, at = _read(data, at)
        name, kind = names[key >> 3]
        if kind in (TEXT, BYTES):
            assert key & 7 == 2, name
            size, at = _read(data, at)
            raw, at = data[at : at + size], at + size
            assert len(raw) == size, name
            found[name] = raw.decode() if kind == TEXT else raw
        else:
            assert key & 7 == 0, name
            value, at = _read(data, at)
            found[name] = bool(value) if kind == FLAG else value
    return found


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
