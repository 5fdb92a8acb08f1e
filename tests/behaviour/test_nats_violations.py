"""What the log says of those who try what they may not; it is not theirs to fill."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from support import RawPeer
from support.live.nats import LiveNats

from broker.base.units import SECOND
from broker.protocols.nats import limits
from broker.protocols.nats.trace import Violations, user
from broker.protocols.nats.wire.options import ClientOptions

TEXT = """
max_sub_tokens: 3
authorization { users: [
    {user: a, password: p, permissions: {publish: b, subscribe: {deny: ["secret", "jobs grp"]}}}
] }
"""


def test_lines(caplog: pytest.LogCaptureFixture) -> None:
    """As nats-server 2.10.22 writes them."""
    caplog.set_level(logging.INFO, "broker.nats")
    with LiveNats(TEXT) as server, RawPeer(server.nats) as peer:
        peer.read_until(b"\r\n")
        peer.send(
            b'CONNECT {"user":"a","pass":"p","verbose":false}\r\n'
            b"PUB x 1\r\nA\r\nPUB b _R_.x 1\r\nA\r\nSUB secret 7\r\nSUB jobs grp 8\r\n"
            b"SUB a.b.c.d 9\r\nPING\r\n"
        )
        peer.read_until(b"PONG\r\n")
        name = "{}:{} - cid:1".format(*peer.socket.getsockname())
    said = [line for line in caplog.messages if "Violation" in line]
    assert said == [
        f'{name} - Publish Violation - User "a", Subject "x"',
        f'{name} - Publish Violation - User "a", Reply "_R_.x"',
        f'{name} - Subscription Violation - User "a", Subject "secret", SID 7',
        f'{name} - Subscription Violation - User "a", Subject "jobs", Queue: "grp", SID 8',
        f'{name} - Subscription Violation Too Many Tokens - User "a", Subject "a.b.c.d", SID 9',
    ]


def session(key: str = "", **options: str) -> Any:
    given = ClientOptions()
    for name, value in options.items():
        setattr(given, name, value)
    identity = SimpleNamespace(key=key, user="UABC")
    return SimpleNamespace(
        host="h", port=1, client_id=1, kind="STANDARD", extra=None, options=given, identity=identity
    )


def test_so_many_in_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now = [SECOND]
    violations = Violations(lambda: now[0])
    for _ in range(limits.NATS_VIOLATIONS_LOGGED + 7):
        violations.publish(session(), "Subject", b"x")
    assert len(caplog.messages) == limits.NATS_VIOLATIONS_LOGGED
    caplog.clear()
    now[0] += SECOND
    violations.publish(session(), "Subject", b"x")
    assert caplog.messages == [
        "7 more errors of clients",
        'h:1 - cid:1 - Publish Violation - User "N/A", Subject "x"',
    ]


@pytest.mark.parametrize(
    ("options", "key", "shown"),
    [
        ({}, "", 'User "N/A"'),
        ({"user": "joe", "password": "s"}, "", 'User "joe"'),
        ({"user": "joe"}, "user:joe", 'User "joe"'),
        ({"user": "maybe a token"}, "", 'User "N/A"'),
        ({"token": "s"}, "", "Token [REDACTED]"),
        ({"nkey": "UA"}, "", 'Nkey "UA"'),
        ({"jwt": "s"}, "", 'JWT User "UABC"'),
    ],
)
def test_names(options: dict[str, str], key: str, shown: str) -> None:
    assert user(session(key, **options)) == shown
