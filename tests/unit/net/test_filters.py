"""Filters against themselves, against other implementations, and against garbage."""

from __future__ import annotations

import logging
import random
import ssl
import zlib
from typing import Literal, get_args

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st
from support.authority import Authority
from support.native.filters import pack, unpack

from broker.net.filters import Deflate, Filter, FilterError, Snappy
from broker.net.openssl import TlsError, iana_name
from broker.net.s2 import S2
from broker.net.tls import Certificates, TlsFiles, server_context

Kind = Literal["deflate", "snappy", "s2", "s2 packed"]


def make(kind: Kind) -> Filter:
    if kind == "deflate":
        return Deflate(6)
    return Snappy() if kind == "snappy" else S2(packs=kind == "s2 packed")


@pytest.mark.parametrize("kind", get_args(Kind))
@given(
    parts=st.lists(
        st.binary(max_size=300) | st.integers(1, 200_000).map(lambda n: b"ab" * n), max_size=5
    ),
    step=st.integers(1, 5_000),
    room=st.integers(1, 70_000),
)
def test_there_and_back_in_pieces(kind: Kind, parts: list[bytes], step: int, room: int) -> None:
    sender, receiver = make(kind), make(kind)
    for part in parts:
        wire = pack(sender, part)
        got = b"".join(
            unpack(receiver, wire[at : at + step], room) for at in range(0, len(wire), step)
        )
        assert got == part


def bodies() -> list[bytes]:
    rng = random.Random(7)
    return [b"x", b"same" * 100_000, rng.randbytes(200_000), b"", b"end"]


def test_deflate_and_zlib_understand_each_other() -> None:
    ours = make("deflate")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    unpacker = zlib.decompressobj(-15)
    for body in bodies():
        assert unpacker.decompress(pack(ours, body)) == body
        wire = packer.compress(body) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert unpack(ours, wire) == body


def test_snappy_and_another_snappy_understand_each_other() -> None:
    ours = make("snappy")
    packer, unpacker = snappy.StreamCompressor(), snappy.StreamDecompressor()
    for body in bodies():
        if body:
            assert unpacker.decompress(pack(ours, body)) == body
            assert unpack(ours, packer.compress(body)) == body


def test_snappy_passes_over_what_it_need_not_know() -> None:
    wire = pack(make("snappy"), b"hello")
    padding = b"\xfe\x80\x96\x98" + bytes(0x989680)  # ten megabytes that are never kept
    ours = make("snappy")
    wire = wire[:10] + padding + wire[10:] + wire[:10] + wire[10:]
    got = b"".join(unpack(ours, wire[at : at + 65_536]) for at in range(0, len(wire), 65_536))
    assert got == b"hellohello"


HELLO = pack(make("snappy"), b"hello" * 50)


@pytest.mark.parametrize(
    "wire",
    [
        HELLO[10:],  # no identifier
        b"\xff\x05\x00\x00sNaPp",
        b"\xff\x06\x00\x00sNaPpX",
        HELLO[:14] + bytes([HELLO[14] ^ 1]) + HELLO[15:],  # another sum
        HELLO[:10] + b"\x02\x04\x00\x00abcd",  # a type that must be known
        HELLO[:10] + b"\x01\x03\x00\x00abc",  # too short for a sum
        HELLO[:10] + b"\x01\x05\x00\x01" + bytes(8),  # more than 64 KiB
        HELLO[:10]
        + b"\x00\x0a\x00\x00"
        + bytes(4)
        + b"\xff\xff\xff\xff\x0f\x00",  # unpacks to 4 GiB
        HELLO[:10] + b"\x00\x0a\x00\x00" + bytes(4) + b"\xff\xff\xff\xff\xff\xff",
        HELLO[:10] + b"\x00\x06\x00\x00" + bytes(4) + b"\x05\xff",
    ],
)
def test_snappy_refuses(wire: bytes) -> None:
    with pytest.raises(FilterError, match="snappy"):
        unpack(make("snappy"), wire)


def test_deflate_refuses_garbage_and_the_end_of_the_stream() -> None:
    with pytest.raises(FilterError, match="deflate"):
        unpack(make("deflate"), b"\xff\xff\xff\xff")
    ended = zlib.compressobj(6, zlib.DEFLATED, -15)
    wire = ended.compress(b"bye") + ended.flush()
    ours = make("deflate")
    with pytest.raises(FilterError, match="follows"):
        unpack(ours, wire + b"more")


@pytest.fixture
def authority(tmp_path: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path)  # type: ignore[arg-type]


def test_files_that_cannot_be_used(authority: Authority) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    with pytest.raises(TlsError, match="No such file"):
        server_context(TlsFiles("/nowhere", str(one.key)))
    with pytest.raises(TlsError, match="key values mismatch"):
        server_context(TlsFiles(str(one.certificate), str(other.key)))
    with pytest.raises(TlsError, match="authorities /nowhere"):
        server_context(TlsFiles(*map(str, one), "/nowhere", "require-verify"))


def test_a_broken_file_changes_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("broker.net")
    pair = authority.issue("one")
    held = Certificates(TlsFiles(*map(str, pair)))
    before = held.context
    pair.certificate.write_text("no certificate")
    assert not held.reload(log)
    assert "certificates not reloaded: " in caplog.text
    assert held.context is before
    authority.issue("one")
    assert held.reload(log)
    assert held.context is not before


def test_old_versions_can_be_asked_for(authority: Authority) -> None:
    pair = authority.issue("one")
    context = server_context(TlsFiles(*map(str, pair), min_version="tls1.0"))
    assert context.minimum_version == ssl.TLSVersion.TLSv1


@pytest.mark.parametrize(
    ("openssl", "go"),
    [
        ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
        ("ECDHE-RSA-AES256-SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
        ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
    ],
)
def test_names_of_ciphers(openssl: str, go: str) -> None:
    assert iana_name(openssl) == go
