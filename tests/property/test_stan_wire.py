"""The messages that are read and written by hand, against the code that is generated."""

from __future__ import annotations

from fuzz.stan_messages import check_msg, check_reading, check_writing, decode
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from support.native import stan as wire

from broker.protocols.stan import stan_pb2 as pb

TEXT = st.text(max_size=40)
BYTES = st.binary(max_size=300)
UINT64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PUB = st.builds(
    pb.PubMsg, clientID=TEXT, guid=TEXT, subject=TEXT, reply=TEXT, data=BYTES, connID=BYTES,
    sha256=BYTES,
)  # fmt: skip
ACK = st.builds(pb.Ack, subject=TEXT, sequence=UINT64)
ANY: st.SearchStrategy[Message] = st.one_of(
    PUB,
    ACK,
    st.builds(pb.PubAck, guid=TEXT, error=TEXT),
    st.builds(
        pb.MsgProto, sequence=UINT64, subject=TEXT, reply=TEXT, data=BYTES, timestamp=INT64,
        redelivered=st.booleans(), redeliveryCount=st.integers(0, 2**32 - 1), CRC32=st.just(7),
    ),
    st.builds(pb.SubscriptionRequest, clientID=TEXT, maxInFlight=st.just(-1), startTimeDelta=INT64),
)  # fmt: skip


@given(PUB)
def test_a_publish_is_read(message: pb.PubMsg) -> None:
    assert wire.read_pub(message.SerializeToString()) == (
        message.clientID.encode(),
        message.guid.encode(),
        message.subject.encode(),
        message.reply.encode(),
        message.data,
        message.connID,
    )


@given(ACK)
def test_an_ack_is_read(message: pb.Ack) -> None:
    expected = message.subject.encode(), message.sequence
    assert wire.read_ack(message.SerializeToString()) == expected


@given(TEXT, TEXT)
def test_a_publish_is_answered(guid: str, error: str) -> None:
    data = wire.write_pub_ack(guid.encode(), error.encode())
    assert data == pb.PubAck(guid=guid, error=error).SerializeToString()


@given(UINT64, TEXT, TEXT, BYTES, INT64, st.integers(0, 2**32 - 1), BYTES)
def test_a_message_is_delivered(
    seq: int, subject: str, reply: str, body: bytes, time: int, count: int, headers: bytes
) -> None:
    check_msg(seq, subject.encode(), reply.encode(), body, time, count, headers)


@given(st.lists(ANY, min_size=1, max_size=3), st.data())
def test_damage_is_refused_or_read_alike(messages: list[Message], data: st.DataObject) -> None:
    """Whole messages one behind the other are one message, whose last fields count."""
    good = b"".join(message.SerializeToString() for message in messages)
    bad = bytearray(good[: data.draw(st.integers(0, len(good)), label="cut")])
    for _ in range(data.draw(st.integers(0, 4), label="changes")):
        at = data.draw(st.integers(0, len(bad)), label="at")
        take = data.draw(st.integers(0, 2), label="bytes less")
        bad[at : at + take] = data.draw(st.binary(max_size=3), label="bytes more")
    check_reading(bytes(bad))
    check_writing(bytes(bad))


@given(st.binary(max_size=8))
def test_strings_are_utf8(text: bytes) -> None:
    data = b"\x0a" + bytes([len(text)]) + text
    try:
        text.decode()
    except UnicodeDecodeError:
        assert wire.read_ack(data) is None
    else:
        assert wire.read_ack(data) == (text, 0)
    assert decode(pb.Ack, data, ["subject", "sequence"]) == wire.read_ack(data)
