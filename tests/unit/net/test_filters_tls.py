"""TLS over memory: records cut anywhere, damaged, long, and what is no record at all."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.authority import Authority
from support.native.filters import count_reads, finish, output, pack, shake, unpack

from broker.net.filters import FilterError, Tls
from broker.net.tls import TlsFiles, common_name, server_context

RECORD_HEAD = 5
RECORD_PLAIN = 16_384
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
WAIT_S = 20.0


class Client:
    """The other end, of Python's ssl."""

    def __init__(self, authority: Authority, version: str) -> None:
        context = ssl.create_default_context(cafile=str(authority.file))
        context.check_hostname = False
        context.minimum_version = context.maximum_version = VERSIONS[version]
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.link = context.wrap_bio(self.incoming, self.outgoing)

    def encrypted(self, data: bytes) -> bytes:
        self.link.write(data)
        return self.outgoing.read()

    def decrypted(self, wire: bytes) -> bytes:
        self.incoming.write(wire)
        found = b""
        while True:
            try:
                got = self.link.read(1 << 16)
            except ssl.SSLWantReadError:
                return found
            found += got
            if not got:
                return found

    def closed(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.link.unwrap()
        return self.outgoing.read()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return TlsFiles(*map(str, authority.issue("server")))


def joined(
    authority: Authority, files: TlsFiles, version: str, step: int = 0
) -> tuple[Tls, Client]:
    """Both ends after the handshake, of which the server gets `step` bytes at a time (0 = all)."""
    server, client = Tls(server_context(files)), Client(authority, version)
    complete = False
    while not complete:
        with contextlib.suppress(ssl.SSLWantReadError):
            client.link.do_handshake()
        wire = client.outgoing.read()
        assert wire
        for start in range(0, len(wire), step or len(wire)):
            complete, answer = shake(server, wire[start : start + (step or len(wire))])
            client.incoming.write(answer)
    client.link.do_handshake()
    return server, client


def records(wire: bytes) -> list[bytes]:
    found = []
    while wire:
        end = RECORD_HEAD + int.from_bytes(wire[3:RECORD_HEAD], "big")
        found.append(wire[:end])
        wire = wire[end:]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("step", [1, 7, 1000, 16_401, 65_536])
def test_records_cut_anywhere(
    authority: Authority, files: TlsFiles, version: str, step: int
) -> None:
    server, client = joined(authority, files, version, step)
    plain = random.Random(step).randbytes(3 * step + 40_000)
    wire = client.encrypted(plain)
    found = [unpack(server, wire[at : at + step]) for at in range(0, len(wire), step)]
    assert b"".join(found) == plain
    assert not server.ended
    assert client.decrypted(pack(server, plain)) == plain


@pytest.mark.parametrize("room", [1, 100, RECORD_PLAIN - 1, RECORD_PLAIN, RECORD_PLAIN + 1])
def test_rooms_of_any_size(authority: Authority, files: TlsFiles, room: int) -> None:
    server, client = joined(authority, files, "1.3")
    plain = random.Random(room).randbytes(min(200 * room, 5 * RECORD_PLAIN))
    assert unpack(server, client.encrypted(plain), room) == plain


def test_nothing_is_read_before_a_record_is_complete(authority: Authority, files: TlsFiles) -> None:
    server, client = joined(authority, files, "1.3")
    reads = count_reads(server)
    first, second = client.encrypted(b"one"), client.encrypted(b"two")
    assert unpack(server, first[:-1]) == b""
    assert reads == []
    assert unpack(server, first[-1:] + second[:4]) == b"one"
    assert unpack(server, second[4:-1]) == b""
    assert unpack(server, second[-1:]) == b"two"
    assert reads == [3, 3]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", [RECORD_HEAD, -1])
def test_a_wrong_tag(authority: Authority, files: TlsFiles, version: str, place: int) -> None:
    server, client = joined(authority, files, version)
    good, bad = client.encrypted(b"good"), bytearray(client.encrypted(b"bad"))
    bad[place] ^= 1
    assert unpack(server, good) == b"good"
    with pytest.raises(FilterError, match="tls: "):
        unpack(server, bytes(bad))
    with pytest.raises(ssl.SSLError):
        client.decrypted(output(server))  # the alert


@pytest.mark.parametrize("version", VERSIONS)
def test_input_that_ends_within_a_record(
    authority: Authority, files: TlsFiles, version: str
) -> None:
    server, client = joined(authority, files, version)
    wire = client.encrypted(b"x" * 1000)
    assert unpack(server, wire[:500]) == b""
    assert not server.ended
    assert client.decrypted(pack(server, b"still here")) == b"still here"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_end_of_the_peer(authority: Authority, files: TlsFiles, version: str) -> None:
    server, client = joined(authority, files, version)
    wire = client.encrypted(b"last words") + client.closed()
    assert unpack(server, wire[:-1]) == b"last words"
    assert not server.ended
    assert unpack(server, wire[-1:]) == b""
    assert server.ended
    client.incoming.write(finish(server))
    client.link.unwrap()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x17\x03\x03\xff\xff",  # longer than a record may be
        b"\x17\x03\x03\x48\x02",
        b"\x17\x02\x03\x00\x10",  # of SSL 2
        b"\x63\x03\x03\x00\x10",  # of no kind
        b"\x17\x03\x03\x00\x00",
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_what_is_no_record(
    authority: Authority, files: TlsFiles, head: bytes, *, after: bool
) -> None:
    """It is refused as soon as its head is there, although the rest of its `length` never comes."""
    server, client = joined(authority, files, "1.3")
    if after:
        assert unpack(server, client.encrypted(b"good")) == b"good"
    with pytest.raises(FilterError, match="tls: "):
        unpack(server, head)


def test_many_small_records_in_one_piece(authority: Authority, files: TlsFiles) -> None:
    server, client = joined(authority, files, "1.2")
    wire = b"".join(client.encrypted(b"%d," % number) for number in range(1000))
    assert len(records(wire)) == 1000
    assert unpack(server, wire) == b"".join(b"%d," % number for number in range(1000))


def test_large_output(authority: Authority, files: TlsFiles) -> None:
    server, client = joined(authority, files, "1.3")
    plain = random.Random(1).randbytes(1 << 20)
    wire = pack(server, plain)
    assert len(records(wire)) == len(plain) // RECORD_PLAIN
    assert client.decrypted(wire) == plain


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_key_update(authority: Authority, files: TlsFiles, tmp_path: Path) -> None:
    """OpenSSL's client has new keys in the middle; both directions go on with them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_3", "-quiet"]
        command += ["-no_ign_eof"]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        conn = listener.accept()[0]
    assert child.stdin is not None
    assert child.stdout is not None
    with conn, child:
        conn.settimeout(WAIT_S)
        server = Tls(server_context(files))
        complete = False
        while not complete:
            complete, answer = shake(server, conn.recv(1 << 16))
            conn.sendall(answer)

        for line in (b"one\n", b"K\n", b"two\n"):
            child.stdin.write(line)
            child.stdin.flush()
            data = conn.recv(1 << 16)  # one record each
            assert unpack(server, data) == (b"" if line == b"K\n" else line)
        conn.sendall(pack(server, b"three\n"))
        assert child.stdout.readline() == b"three\n"
        child.kill()


class Shown:
    """The server's side of a connection whose client has shown this certificate."""

    def __init__(self, der: bytes) -> None:
        self.der = der

    def getpeercert(self, *, binary_form: bool) -> bytes:
        assert binary_form
        return self.der


def shown_with(names: list[str], *patch: bytes) -> Any:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    der = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    return Shown(der.replace(*patch) if patch else der)


def test_the_common_name_is_the_last_one() -> None:
    assert common_name(shown_with([])) == ""
    assert common_name(shown_with(["one"])) == "one"
    assert common_name(shown_with(["one", "two"])) == "two"


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param((b"worker", b"w\xff\xferks"), id="text"),
        pytest.param((b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x06"), id="version"),
    ],
)
def test_a_certificate_that_only_openssl_reads_has_no_common_name(
    patch: tuple[bytes, bytes],
) -> None:
    assert common_name(shown_with(["worker"], *patch)) == ""
