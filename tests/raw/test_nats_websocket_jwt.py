"""Logins of browsers by a token in a cookie, in operator mode.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support import RawPeer
from support.clients.websocket import PLAIN, WebPeer, websocket_of
from support.logins.tokens import Company, Tenant, user
from support.nats_file import FileServer

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.nkeys import USER, KeyPair

COMPANY, A, BOB, EVE = Company(), Tenant("A"), KeyPair(USER), KeyPair(USER)
TOKEN = user(BOB, A.pair)
BEARER = user(BOB, A.pair, bearer_token=True)
OF_EVE = user(EVE, A.pair, bearer_token=True, pub={"deny": ["x"]})
ONLY_TCP = user(BOB, A.pair, bearer_token=True, allowed_connection_types=["STANDARD"])
STRANGE = user(BOB, Tenant("B").pair, bearer_token=True)
CONFIG = f"""
operator: {COMPANY.token}
resolver: MEMORY
resolver_preload {{ {A.public}: {COMPANY.account(A)} }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    folder = tmp_path_factory.mktemp("server")
    server = FileServer(folder, PLAIN.format('jwt_cookie: "token"', CONFIG))
    yield server
    server.close()


def login(server: FileServer, cookie: str, pair: KeyPair | None = None, **more: Any) -> WebPeer:
    """CONNECT with this cookie; `pair` signs the nonce."""
    headers: Mapping[str, str] = {"Cookie": cookie} if cookie else {}
    peer = WebPeer(RawPeer(websocket_of(server.folder)), headers)
    info = peer.info()
    assert info["auth_required"] is True
    fields = {"verbose": False, "pedantic": False, **more}
    if pair is not None:
        fields["sig"] = nkeys.to_base64(pair.sign(str(info["nonce"]).encode()))
    peer.send(b"CONNECT " + json.dumps(fields).encode() + b"\r\nPING\r\n")
    return peer


def test_a_bearer_needs_no_more(server: FileServer) -> None:
    with login(server, f"a=b; token={BEARER}") as peer:
        peer.read_until(b"PONG\r\n")
        peer.send(b"SUB x 1\r\nPUB x 1\r\nA\r\n")
        peer.read_until(b"MSG x 1 1\r\nA\r\n")


def test_a_signature_comes_with_connect(server: FileServer) -> None:
    with login(server, f"token={TOKEN}", BOB) as peer:
        peer.read_until(b"PONG\r\n")


def test_what_connect_says_comes_first(server: FileServer) -> None:
    with login(server, f"token={BEARER}", jwt=OF_EVE) as peer:
        peer.read_until(b"PONG\r\n")
        peer.send(b"PUB x 1\r\nA\r\n")
        peer.read_until(b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n")


@pytest.mark.parametrize(
    ("cookie", "pair"),
    [
        ("", None),
        ("", BOB),
        (f"other={BEARER}", None),
        (f"Token={BEARER}", None),
        ("token=", None),
        ("token=nonsense", None),
        (f"token={TOKEN}", None),
        (f"token={TOKEN}", EVE),
        (f"token={STRANGE}", None),
        (f"token={ONLY_TCP}", None),
        (f"token={BEARER[:-3]}abc", None),
    ],
)
def test_who_is_turned_away(server: FileServer, cookie: str, pair: KeyPair | None) -> None:
    with login(server, cookie, pair) as peer:
        peer.read_until(b"-ERR 'Authorization Violation'\r\n")
        assert peer.read_close() == (1008, "Authentication Failure")


def test_a_token_stands_in_no_line_of_the_log(server: FileServer) -> None:
    with login(server, f"token={BEARER}") as peer:
        peer.read_until(b"PONG\r\n")
    log = server.log.read_text()
    assert BEARER not in log
    assert TOKEN not in log


def test_plain_clients_have_no_cookies(server: FileServer) -> None:
    with RawPeer(server.address) as peer:
        peer.read_until(b"\r\n")
        peer.send(b"CONNECT {}\r\n")
        peer.read_until(b"-ERR 'Authorization Violation'\r\n")
