"""TLS, snappy and deflate on a connection, what goes wrong with them, and when TLS is required."""

from __future__ import annotations

import itertools
import json
import ssl
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Server
from support.authority import Authority, Pair
from support.clients.http import request
from support.clients.nsq import ERROR, MESSAGE, RESPONSE, Wire, body

PACKINGS = ("", "snappy", "deflate")
OK = (RESPONSE, b"OK")


def keys(pair: Pair, **more: object) -> dict[str, dict[str, object]]:
    return {"nsq": {"tls_cert": str(pair.certificate), "tls_key": str(pair.key), **more}}


@pytest.fixture
def secure(broker_for: Callable[[Any], Server], pair: Pair) -> Server:
    return broker_for(keys(pair))


def roundtrip(wire: Wire, topic: str) -> None:
    """Messages of all sizes there and back on the same connection."""
    bodies = [b"a", b"b" * 5_000, bytes(range(256)) * 2_000, b"c"]
    for data in bodies:
        assert wire.ask(body(f"PUB {topic}".encode(), data)) == OK
    assert wire.ask(f"SUB {topic} ch\n".encode()) == OK
    wire.send(b"RDY 1\n")
    for data in bodies:
        kind, message = wire.frame()
        assert (kind, message[26:]) == (MESSAGE, data)
        wire.send(b"FIN " + message[10:26] + b"\n")


@pytest.mark.parametrize(("tls", "packing"), [*itertools.product((False, True), PACKINGS)][1:])
def test_every_combination(
    secure: Server, authority: Authority, uniq: str, tls: bool, packing: str
) -> None:
    asked = {"tls_v1": tls, **({packing: True} if packing else {})}
    with Wire(secure.nsq) as wire:
        granted = wire.identify(authority.client(), **asked)
        assert (granted["tls_v1"], granted["snappy"], granted["deflate"]) == (
            tls,
            packing == "snappy",
            packing == "deflate",
        )
        roundtrip(wire, uniq)
        stats = request(secure.nsq_http, "GET", "/stats", format="json", topic=uniq).json
        (client,) = stats["topics"][0]["channels"][0]["clients"]
        assert (client["tls"], client["snappy"], client["deflate"]) == (
            tls,
            packing == "snappy",
            packing == "deflate",
        )
        if tls:
            assert client["tls_version"] == "TLS1.3"


def test_the_cipher_of_tls_1_2_has_the_name_that_go_gives_it(
    secure: Server, authority: Authority, uniq: str
) -> None:
    context = authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with Wire(secure.nsq) as wire:
        wire.identify(context, tls_v1=True)
        roundtrip(wire, uniq)
        stats = request(secure.nsq_http, "GET", "/stats", format="json", topic=uniq).json
    (client,) = stats["topics"][0]["channels"][0]["clients"]
    assert client["tls_version"] == "TLS1.2"
    assert client["tls_cipher_suite"] == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


def test_without_a_certificate_nothing_changes(broker: Server, uniq: str) -> None:
    with Wire(broker.nsq) as wire:
        assert wire.identify(tls_v1=True)["tls_v1"] is False
        roundtrip(wire, uniq)


def test_without_negotiation_wishes_are_not_heard(secure: Server, uniq: str) -> None:
    with Wire(secure.nsq) as wire:
        assert wire.ask(body(b"IDENTIFY", b'{"tls_v1":true,"snappy":true}')) == OK
        roundtrip(wire, uniq)


def test_two_compressions(secure: Server) -> None:
    with Wire(secure.nsq) as wire:
        data = b'{"feature_negotiation":true,"snappy":true,"deflate":true}'
        text = b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
        assert wire.ask(body(b"IDENTIFY", data)) == (ERROR, text)
        assert wire.is_closed()


@pytest.mark.parametrize("level", [-1, 0, 1, 6, 9, 100])
def test_deflate_levels(secure: Server, uniq: str, level: int) -> None:
    with Wire(secure.nsq) as wire:
        granted = wire.identify(deflate=True, deflate_level=level)
        assert granted["deflate_level"] == (min(level, 6) if level > 0 else 6)
        roundtrip(wire, uniq)


@pytest.mark.parametrize("off", ["snappy", "deflate"])
def test_a_compression_switched_off(
    broker_for: Callable[[Any], Server], uniq: str, off: str
) -> None:
    server = broker_for({"nsq": {off: False}})
    with Wire(server.nsq) as wire:
        other = "deflate" if off == "snappy" else "snappy"
        granted = wire.identify(snappy=True, deflate=True)
        assert (granted[off], granted[other]) == (False, True)
        roundtrip(wire, uniq)


def test_trap_27_what_comes_behind_an_upgrading_identify_is_lost(secure: Server, uniq: str) -> None:
    with Wire(secure.nsq) as wire:
        data = b'{"feature_negotiation":true,"deflate":true}'
        wire.send(body(b"IDENTIFY", data) + b"NONSENSE\n")
        assert json.loads(wire.frame()[1])["deflate"] is True
        wire.compress("deflate")
        assert wire.frame() == OK
        roundtrip(wire, uniq)


# --- handshakes that fail


def bystander(server: Server, topic: str) -> Wire:
    wire = Wire(server.nsq)
    wire.__enter__()
    assert wire.ask(body(f"PUB {topic}".encode(), b"x")) == OK
    return wire


def test_garbage_instead_of_a_handshake(secure: Server, uniq: str) -> None:
    other = bystander(secure, uniq)
    with Wire(secure.nsq) as wire:
        kind, _ = wire.ask(body(b"IDENTIFY", b'{"feature_negotiation":true,"tls_v1":true}'))
        assert kind == RESPONSE
        wire.socket.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        rest = b""
        while data := wire.socket.recv(65536):
            rest += data
        assert b"E_IDENTIFY_FAILED IDENTIFY failed " in rest
    assert other.ask(body(f"PUB {uniq}".encode(), b"x")) == OK


def test_a_client_that_does_not_trust_us(secure: Server, uniq: str) -> None:
    other = bystander(secure, uniq)
    with Wire(secure.nsq) as wire, pytest.raises(ssl.SSLCertVerificationError):
        wire.identify(ssl.create_default_context(), tls_v1=True)
    assert other.ask(body(f"PUB {uniq}".encode(), b"x")) == OK


def test_half_a_handshake_and_gone(secure: Server, uniq: str) -> None:
    other = bystander(secure, uniq)
    with Wire(secure.nsq) as wire:
        wire.ask(body(b"IDENTIFY", b'{"feature_negotiation":true,"tls_v1":true}'))
        wire.socket.sendall(b"\x16\x03\x01\x02\x00\x01")
    assert other.ask(body(f"PUB {uniq}".encode(), b"x")) == OK


def test_an_expired_certificate_of_ours_is_seen_by_clients(
    broker_for: Callable[[Any], Server], authority: Authority
) -> None:
    server = broker_for(keys(authority.issue("expired", days=-1)))
    with Wire(server.nsq) as wire, pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        wire.identify(authority.client(), tls_v1=True)


def test_versions_below_the_least_are_refused(
    broker_for: Callable[[Any], Server], authority: Authority, pair: Pair
) -> None:
    server = broker_for(keys(pair, tls_min_version="tls1.3"))
    context = authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Wire(server.nsq) as wire, pytest.raises((ssl.SSLError, OSError)):
        wire.identify(context, tls_v1=True)


# --- certificates of clients


def refused(server: Server, context: ssl.SSLContext) -> bool:
    """Whether the handshake, or what follows it, fails."""
    with Wire(server.nsq) as wire:
        try:
            wire.identify(context, tls_v1=True)
        except (OSError, EOFError):
            return True
    return False


def test_require_takes_any_certificate(
    broker_for: Callable[[Any], Server], authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    server = broker_for(keys(pair, tls_client_auth_policy="require"))
    assert refused(server, authority.client())
    assert not refused(server, authority.client(Authority(tmp_path, "other").issue("stranger")))


def test_require_verify_takes_what_is_signed(
    broker_for: Callable[[Any], Server], authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    more = {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": str(authority.file)}
    server = broker_for(keys(pair, **more))
    assert refused(server, authority.client())
    assert refused(server, authority.client(Authority(tmp_path, "other").issue("stranger")))
    assert refused(server, authority.client(authority.issue("late", days=-1)))
    assert not refused(server, authority.client(authority.issue("friend")))


# --- TLS required

REQUIRED = [
    (b"NOP\n", b"NOP"),
    (b"FOO\n", b"FOO"),
    (b"SUB t c\n", b"SUB"),
    (body(b"PUB t", b"x"), b"PUB"),
    (body(b"AUTH", b"x"), b"AUTH"),
    (b"RDY 1\n", b"RDY"),
    (b"CLS\n", b"CLS"),
]


@pytest.mark.parametrize(("command", "name"), REQUIRED)
def test_nothing_but_identify_without_tls(
    broker_for: Callable[[Any], Server], pair: Pair, command: bytes, name: bytes
) -> None:
    server = broker_for(keys(pair, tls_required="true"))
    with Wire(server.nsq) as wire:
        text = b"E_INVALID cannot %b in current state (TLS required)" % name
        assert wire.ask(command) == (ERROR, text)
        assert wire.is_closed()
    answer = request(server.nsq_http, "GET", "/ping")
    assert answer.status == 403
    assert answer.json["message"] == "TLS_REQUIRED"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


def test_with_tls_all_is_well(
    broker_for: Callable[[Any], Server], authority: Authority, pair: Pair, uniq: str
) -> None:
    server = broker_for(keys(pair, tls_required="true"))
    with Wire(server.nsq) as wire:
        wire.identify(authority.client(), tls_v1=True)
        roundtrip(wire, uniq)


def test_plain_http_may_stay_open(broker_for: Callable[[Any], Server], pair: Pair) -> None:
    server = broker_for(keys(pair, tls_required="tcp-https"))
    assert request(server.nsq_http, "GET", "/ping").body == b"OK"
    with Wire(server.nsq) as wire:
        assert wire.ask(b"NOP\n")[0] == ERROR


def test_trap_28_a_policy_for_clients_makes_tls_required(
    broker_for: Callable[[Any], Server], pair: Pair
) -> None:
    server = broker_for(keys(pair, tls_client_auth_policy="require"))
    with Wire(server.nsq) as wire:
        assert wire.ask(b"NOP\n")[1].endswith(b"(TLS required)")
    assert request(server.nsq_http, "GET", "/ping").status == 403


# --- bytes that do not decode


@pytest.mark.parametrize("packing", ["snappy", "deflate"])
def test_garbage_instead_of_compressed_bytes(secure: Server, uniq: str, packing: str) -> None:
    other = bystander(secure, uniq)
    with Wire(secure.nsq) as wire:
        wire.identify(**{packing: True})
        wire.socket.sendall(b"\xff" * 1000)
        assert wire.is_closed()
    assert other.ask(body(f"PUB {uniq}".encode(), b"x")) == OK


def test_a_small_input_that_unpacks_to_a_large_one(secure: Server, uniq: str) -> None:
    """A hundred megabytes of commands in a hundred kilobytes: answered as they would be plain."""
    other = bystander(secure, uniq)
    with Wire(secure.nsq) as wire:
        wire.identify(deflate=True)
        packer: Any = wire.packer
        one = packer.compress(b"NOP\n" * 250_000)
        for _ in range(100):
            wire.socket.sendall(one)
            one = packer.compress(b"NOP\n" * 250_000)
        wire.socket.sendall(one + packer.flush(zlib.Z_SYNC_FLUSH))
        assert other.ask(body(f"PUB {uniq}".encode(), b"x")) == OK
        assert wire.ask(body(f"PUB {uniq}".encode(), b"x")) == OK


def test_a_body_over_the_limit_is_refused_before_it_is_unpacked(secure: Server, uniq: str) -> None:
    with Wire(secure.nsq) as wire:
        wire.identify(deflate=True)
        wire.send(f"PUB {uniq}\n".encode() + struct.pack(">i", 1 << 30) + bytes(1 << 20))
        assert wire.frame() == (ERROR, b"E_BAD_MESSAGE PUB message too big 1073741824 > 1048576")
