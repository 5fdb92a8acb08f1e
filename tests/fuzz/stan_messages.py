"""Messages of NATS Streaming: any bytes mean what the generated code makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzz.engine import Target
from fuzz.watch import fence_end
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from support.native import stan as wire

from broker.protocols.stan import stan_pb2 as pb

START_GROUP = 3
SUBJECT_MAX = 0xFFFF  # of a record
PUB = pb.PubMsg(
    clientID="me", guid="guid", subject="foo.bar", reply="é", data=b"\xff\0", connID=b"0123"
)
SEEDS = [
    PUB.SerializeToString(),
    pb.PubMsg(clientID="me", guid="g" * 22, subject="foo", data=b"d" * 200).SerializeToString(),
    pb.PubMsg(guid="\U0001f600 \u07ff\u0800\ud7ff\ue000\uffff", sha256=b"s").SerializeToString(),
    pb.Ack(subject="foo", sequence=300).SerializeToString(),
    pb.Ack(subject="foo", sequence=2**64 - 1).SerializeToString() + b"\x0a\x01x\x10\x01",
    pb.PubAck(guid="guid", error="no").SerializeToString(),
    pb.MsgProto(
        sequence=5, subject="foo", data=b"x", timestamp=-1, redelivered=True, redeliveryCount=3
    ).SerializeToString(),
    b"\x0a\x00\x0d1234\x1112345678\x18\x80\x00\x52\x01s\x0b\x08\x01\x0c",
]
TOKENS = [
    b"\x0a", b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x32", b"\x10", b"\x18", b"\0", b"\x7f", b"\x80",
    b"\xff", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\0",
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xf8\xff\xff\xff\x0f", b"\x8a\x80\x80\0",
    b"\xc3\xa9", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\x0b\x0c",
]  # fmt: skip


def decode(kind: type[Message], data: bytes, fields: list[str]) -> tuple[Any, ...] | None:
    """What the generated code makes of it: strings as bytes, None for nothing and for groups."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    if any(field.wire_type == START_GROUP for field in UnknownFieldSet(message)):
        return None
    values = (getattr(message, field) for field in fields)
    return tuple(v.encode() if isinstance(v, str) else v for v in values)


def check_reading(data: bytes) -> None:
    """Both readers against the generated code."""
    readers: list[tuple[Callable[[bytes], Any], type[Message], list[str]]] = [
        (wire.read_pub, pb.PubMsg, ["clientID", "guid", "subject", "reply", "data", "connID"]),
        (wire.read_ack, pb.Ack, ["subject", "sequence"]),
    ]
    for read, kind, fields in readers:
        with fence_end(data):
            found = read(data)
        assert found == decode(kind, data, fields), (kind, data)


def check_writing(data: bytes) -> None:
    """What the generated code finds in the bytes, both write alike."""
    ack = decode(pb.PubAck, data, ["guid", "error"])
    if ack is not None:
        guid, error = ack
        made = pb.PubAck(guid=guid.decode(), error=error.decode())
        assert wire.write_pub_ack(guid, error) == made.SerializeToString()
    fields = ["sequence", "subject", "reply", "data", "timestamp", "redeliveryCount"]
    msg = decode(pb.MsgProto, data, fields)
    if msg is not None and max(len(msg[1]), len(msg[2])) <= SUBJECT_MAX:
        check_msg(*msg)


def check_msg(
    seq: int, subject: bytes, reply: bytes, body: bytes, time: int, count: int, head: bytes = b"h"
) -> None:
    """One record, with headers that nobody gets to see."""
    made = pb.MsgProto(
        sequence=seq,
        subject=subject.decode(),
        reply=reply.decode(),
        data=body,
        timestamp=time,
        redelivered=count > 0,
        redeliveryCount=count,
    )
    written = wire.write_msg(seq, subject, reply, head, body, time, count)
    assert written == made.SerializeToString()


def check(data: bytes) -> None:
    """Raise AssertionError when one input is treated wrongly."""
    check_reading(data)
    check_writing(data)


def target() -> Target:
    """What `make fuzz` runs."""
    return Target("stan", check, SEEDS, TOKENS, length_max=2_000)
