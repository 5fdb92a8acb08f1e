"""What the log says of clients."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes.log import WHO, session
from support.fakes.loop import FakeNats

from broker.protocols.nats import errors
from broker.protocols.nats.client.log import ClientLog
from broker.protocols.nats.settings import Settings
from broker.protocols.nats.trace import Violations
from broker.protocols.nats.wire.options import ClientOptions


@pytest.fixture
def hooks(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, "broker.nats")
    handshake: Any = SimpleNamespace(on_open=[], on_refuse=[], on_close=[], violations=Violations())
    ClientLog(handshake, Settings)
    return handshake


def test_coming_and_going(hooks: Any, caplog: pytest.LogCaptureFixture) -> None:
    for act in (*hooks.on_open, *hooks.on_close):
        act(session())
    assert caplog.messages == [
        f"{WHO} - Client connection created",
        f"{WHO} - Client connection closed: Gone",
    ]
    caplog.clear()
    caplog.set_level(logging.INFO, "broker.nats")
    for act in (*hooks.on_open, *hooks.on_close):
        act(session())
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, ""),
        ({"user": "joe", "password": "s"}, ' - User "joe"'),
        ({"user": "maybe a token"}, ""),
        ({"token": "s"}, ""),
        ({"nkey": "UA", "signature": "s"}, ' - Nkey "UA"'),
    ],
)
def test_those_who_are_turned_away(
    hooks: Any, given: dict[str, str], shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = ClientOptions()
    for name, value in given.items():
        setattr(options, name, value)
    for act in hooks.on_refuse:
        act(session(), SimpleNamespace(options=options), "why")
    assert caplog.record_tuples == [
        ("broker.nats", logging.ERROR, f"{WHO} - authentication error{shown}"),
        ("broker.nats", logging.DEBUG, f"{WHO} - why"),
    ]


def test_one_connection_too_many_is_no_wrong_login(
    hooks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reason = errors.NATS_ACCOUNT_CONNECTIONS.text
    for act in hooks.on_refuse:
        act(session(), SimpleNamespace(options=ClientOptions()), reason)
    assert caplog.messages == [f"{WHO} - maximum account active connections exceeded"]


@pytest.mark.parametrize(
    ("why", "level", "shown"),
    [
        ("Parse Error", "ERROR", "Client parser ERROR"),
        ("Protocol Violation", "ERROR", "Client parser ERROR"),
        (
            "Maximum Control Line Exceeded",
            "ERROR",
            "maximum control line exceeded: max_control_line 4096",
        ),
        (
            "Maximum Message Payload Exceeded",
            "ERROR",
            "maximum payload exceeded: max_payload 1048576",
        ),
        ("Maximum Connections Exceeded", "ERROR", "maximum connections exceeded"),
        (
            "Slow Consumer (Pending Bytes)",
            "INFO",
            "Slow Consumer Detected: MaxPending of 67108864 Exceeded",
        ),
        (
            "Slow Consumer (Write Deadline)",
            "INFO",
            "Slow Consumer Detected: WriteDeadline of 10s exceeded",
        ),
    ],
)
def test_why_it_was_closed(
    hooks: Any, why: str, level: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    for act in hooks.on_close:
        act(session(closed_because=why))
    first = caplog.records[0]
    assert (first.levelname, first.getMessage()) == (level, f"{WHO} - {shown}")


def test_one_subscription_too_many(caplog: pytest.LogCaptureFixture) -> None:
    nats = FakeNats(max_subscriptions=1)
    peer = nats.dial()
    assert peer.talk(b"SUB a 1\r\nSUB b 2\r\n") == b"-ERR 'maximum subscriptions exceeded'\r\n"
    (message,) = caplog.messages
    assert message.endswith(" - maximum subscriptions exceeded")
