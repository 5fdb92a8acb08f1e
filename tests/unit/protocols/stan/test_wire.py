"""Messages of NATS Streaming, byte by byte, and the generated code of the others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.native import stan as wire

from broker.protocols.stan import stan_pb2 as pb

ROOT = Path(__file__).resolve().parents[4]
PUB = b"\x0a\x02me\x12\x01g\x1a\x03foo\x2a\x02hi\x32\x02id"
NOT_UTF8 = [
    b"\x80", b"\xc1\xbf", b"\xc3", b"\xc3(", b"\xe0\x9f\xbf", b"\xe2\x82", b"\xe2\x82(",
    b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
]  # fmt: skip
UTF8 = "\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff".encode()


def field(number: int, text: bytes) -> bytes:
    return bytes([number << 3 | 2, len(text)]) + text


def test_a_publish() -> None:
    assert wire.read_pub(PUB) == (b"me", b"g", b"foo", b"", b"hi", b"id")
    assert wire.read_pub(b"") == (b"",) * 6


def test_the_last_field_wins() -> None:
    assert wire.read_pub(PUB + field(3, b"bar") + field(2, b"")) == (
        b"me", b"", b"bar", b"", b"hi", b"id",
    )  # fmt: skip
    assert wire.read_ack(b"\x10\x05\x10\x07") == (b"", 7)


@pytest.mark.parametrize(
    "other",
    [
        b"\x08\x05",  # a number where a string should be
        b"\x29" + bytes(8),  # fixed ones too
        b"\x2d" + bytes(4),
        field(10, b"sha"),
        b"\x9a\x06\x01x",  # field 99
        b"\xfa\xff\xff\xff\x0f\x01x",  # the highest number there is
        b"\x4a\x81\x80\x80\x80\x00x",
        b"\xc8\x80\x80\x80\x00\x01",  # field 9, written longer than need be
        b"\x48\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_other_fields_are_skipped(other: bytes) -> None:
    expected = (b"me", b"g", b"foo", b"", b"hi", b"id")
    assert wire.read_pub(other + PUB) == expected
    assert wire.read_pub(PUB + other) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x02\x01x",  # field 0
        b"\x0b\x0c",  # a group
        b"\x0c",
        b"\x0e",  # kinds 6 and 7 do not exist
        b"\x0f",
        b"\x0a",  # nothing behind the tag
        b"\x0a\x02x",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\x81\x80\x80\x80\x80\x00x",  # a length of six bytes
        b"\x48\x80",
        b"\x4d123",
        b"\x491234567",
        b"\x8a\x80\x80\x80\x80\x00\x01x",  # a tag of six bytes
        b"\xfa\xff\xff\xff\x1f\x01x",  # a tag of more than 32 bits
        b"\x48\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00",  # eleven bytes of one number
    ],
)
def test_what_cannot_be_read(wrong: bytes) -> None:
    for read in (wire.read_pub, wire.read_ack):
        assert read(wrong) is None
        assert read(field(1, b"x") + wrong) is None


def test_every_cut() -> None:
    ends = [0, 4, 7, 12, 16, len(PUB)]
    for cut in range(len(PUB)):
        assert (wire.read_pub(PUB[:cut]) is not None) == (cut in ends)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_strings_of_a_publish_are_utf8(number: int) -> None:
    for pad in range(9):  # behind and before whole words
        for text in NOT_UTF8:
            assert wire.read_pub(field(number, b"a" * pad + text)) is None
            assert wire.read_pub(field(number, text + b"a" * pad)) is None
            assert wire.read_pub(field(number, text) + field(number, b"good")) is None
        assert wire.read_pub(field(number, b"a" * pad + UTF8 + b"a" * pad)) is not None


def test_bytes_of_a_publish_are_any() -> None:
    assert wire.read_pub(field(5, b"\xff") + field(6, b"\xfe") + field(10, b"\xfd")) is not None


def test_the_channel_of_an_ack_is_utf8() -> None:
    assert wire.read_ack(field(1, b"a" * 9 + UTF8)) == (b"a" * 9 + UTF8, 0)
    assert all(wire.read_ack(field(1, text)) is None for text in NOT_UTF8)


def test_an_ack() -> None:
    assert wire.read_ack(b"\x0a\x03foo\x10\xac\x02") == (b"foo", 300)
    assert wire.read_ack(b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01") == (b"", 2**64 - 1)


def test_answers_of_a_publish() -> None:
    assert wire.write_pub_ack(b"guid", b"") == b"\x0a\x04guid"
    assert wire.write_pub_ack(b"", b"no") == b"\x12\x02no"
    assert wire.write_pub_ack(b"", b"") == b""


def test_a_message_once_and_again() -> None:
    first = b"\x08\x01\x12\x03foo\x22\x02hi\x28\x80\x01"
    assert wire.write_msg(1, b"foo", b"", b"NATS/1.0", b"hi", 128, 0) == first
    assert wire.write_msg(1, b"foo", b"", b"", b"hi", 128, 2) == first + b"\x30\x01\x38\x02"
    assert wire.write_msg(0, b"", b"r", b"", b"", 0, 0) == b"\x1a\x01r"


@pytest.mark.parametrize("bits", range(7, 64, 7))
def test_sizes_of_numbers(bits: int) -> None:
    for value in (2**bits - 1, 2**bits):
        made = pb.MsgProto(sequence=value, subject="s", data=b"d" * min(value, 20_000))
        assert wire.write_msg(value, b"s", b"", b"", made.data, 0, 0) == made.SerializeToString()


def test_the_generated_code_is_that_of_the_source(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    folder = Path("broker/protocols/stan")
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(folder / "stan.proto")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    for name in ("stan_pb2.py", "stan_pb2.pyi"):
        assert (tmp_path / folder / name).read_text() == (ROOT / folder / name).read_text()


def test_all_messages_are_there() -> None:
    source = (ROOT / "broker/protocols/stan/stan.proto").read_text()
    names = re.findall(r"^message (\w+)", source, re.MULTILINE)
    assert set(names) == set(pb.DESCRIPTOR.message_types_by_name)
    assert pb.DESCRIPTOR.package == "pb"
