"""A session between its client and auth servers: what waits, in which order, and for how long."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from support.fakes.nsq import (
    ERROR,
    HEARTBEAT,
    OK,
    RESPONSE,
    FakeNsq,
    MakeNsq,
    NsqPeer,
    mpub,
    pub,
    sized,
)
from support.servers.authd import grant, row

from broker.base.units import SECOND
from broker.protocols.nsq import limits
from broker.protocols.nsq.auth import Grant, Peer

AUTH = b"AUTH\n" + sized(b"secret")
FAILED = (ERROR, b"E_AUTH_FAILED AUTH failed")
TTL_S = 50  # less than a silent connection lives


@dataclass
class Question:
    """One that waits for its answer, as the task that the real Authority gives."""

    peer: Peer
    secret: bytes
    done: Callable[[Grant | None], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class FakeAuthority:
    """Answers when the test says so."""

    asked: list[Question] = field(default_factory=list)

    def ask(self, peer: Peer, secret: bytes, done: Callable[[Grant | None], None]) -> Question:
        self.asked.append(Question(peer, secret, done))
        return self.asked[-1]


class Guarded:
    """A frontend with an authority, and one peer."""

    def __init__(self, nsq: FakeNsq, authority: FakeAuthority) -> None:
        self.nsq = nsq
        self.authority = authority
        self.peer: NsqPeer = nsq.dial()

    def answer(self, body: bytes | None = None) -> None:
        """The last question gets this answer; none when there is none."""
        self.authority.asked[-1].done(None if body is None else Grant.read(body))
        self.nsq.loop.run()

    def let_in(self, body: bytes) -> None:
        self.peer.send(AUTH)
        self.answer(body)
        ((kind, _),) = self.peer.frames()
        assert kind == RESPONSE


@pytest.fixture
def guarded(make_nsq: MakeNsq) -> Guarded:
    authority = FakeAuthority()
    return Guarded(make_nsq(authority=authority), authority)


def _depth(nsq: FakeNsq, topic: str) -> int | None:
    log = nsq.engine.logs.get(topic)
    return None if log is None else int(log.depth)


def test_nothing_behind_auth_is_done_before_its_answer(guarded: Guarded) -> None:
    assert guarded.peer.ask(AUTH + pub(b"t", b"1") + mpub(b"t", b"2", b"3") + b"NOP\n") == []
    assert _depth(guarded.nsq, "t") is None
    assert guarded.authority.asked[0].peer == Peer("192.0.2.7")
    assert guarded.authority.asked[0].secret == b"secret"
    guarded.answer(grant(row()))
    answer = b'{"identity":"me","identity_url":"http://x","permission_count":1}'
    assert guarded.peer.frames() == [(RESPONSE, answer), OK, OK]
    assert _depth(guarded.nsq, "t") == 3


def test_one_that_waits_holds_nobody_else(guarded: Guarded) -> None:
    other = guarded.nsq.dial()
    guarded.peer.send(AUTH)
    other.send(AUTH)
    guarded.answer(grant(row()))
    assert other.ask(pub(b"t", b"1"))[-1] == OK
    assert guarded.peer.frames() == []


def test_heartbeats_go_on_and_waiting_is_no_silence(guarded: Guarded) -> None:
    guarded.peer.send(AUTH)
    guarded.nsq.loop.advance(3 * limits.NSQ_HEARTBEAT_INTERVAL)
    assert guarded.peer.frames() == [HEARTBEAT] * 3
    guarded.answer(grant(row()))
    assert len(guarded.peer.frames()) == 1


@pytest.mark.parametrize("cut", [1, 7, 12, 16])
def test_a_command_in_pieces_around_the_answer(guarded: Guarded, cut: int) -> None:
    rest = mpub(b"topic", b"body")
    guarded.peer.send(AUTH + rest[:cut])
    guarded.answer(grant(row()))
    assert guarded.peer.ask(rest[cut:])[-1] == OK
    assert _depth(guarded.nsq, "topic") == 1


def test_no_answer_is_a_refusal(guarded: Guarded) -> None:
    guarded.peer.send(AUTH + pub(b"t", b"1"))
    guarded.answer(None)
    assert guarded.peer.frames() == [FAILED]
    assert guarded.peer.transport.closed
    assert _depth(guarded.nsq, "t") is None


def test_a_client_that_leaves_is_asked_about_no_more(guarded: Guarded) -> None:
    guarded.peer.send(AUTH)
    guarded.peer.transport.abort()
    guarded.nsq.loop.run()
    assert guarded.authority.asked[0].cancelled
    guarded.answer(grant(row()))  # too late, and of no effect


def test_draining_while_an_answer_is_due(guarded: Guarded) -> None:
    guarded.peer.send(AUTH)
    (session,) = guarded.nsq.frontend.sessions
    session.drain()
    guarded.nsq.loop.run()
    guarded.answer(grant(row()))
    assert guarded.peer.transport.closed
    assert guarded.peer.frames() == []


def test_within_its_time_nobody_is_asked_again(guarded: Guarded) -> None:
    guarded.let_in(grant(row(), ttl=TTL_S))
    for second in range(TTL_S):
        assert guarded.peer.ask(pub(b"t%d" % (second % 2), b"x"))[-1] == OK
        guarded.nsq.loop.advance(SECOND)
    assert len(guarded.authority.asked) == 1


@pytest.mark.parametrize("command", [pub(b"t", b"2"), mpub(b"t", b"2"), b"SUB t c\n"])
def test_past_its_time_the_next_command_asks(guarded: Guarded, command: bytes) -> None:
    guarded.let_in(grant(row(), ttl=TTL_S))
    assert guarded.peer.ask(pub(b"t", b"1")) == [OK]
    guarded.nsq.loop.advance(TTL_S * SECOND)
    guarded.peer.frames()
    assert guarded.peer.ask(command + pub(b"t", b"3")) == []
    assert len(guarded.authority.asked) == 2
    assert guarded.authority.asked[1].secret == b"secret"
    guarded.answer(grant(row(), ttl=TTL_S))
    assert guarded.peer.frames() == [OK, OK]
    assert len(guarded.authority.asked) == 2


def test_past_its_time_less_may_be_granted(guarded: Guarded) -> None:
    """Publishes before it are answered first, those behind it are not done."""
    guarded.let_in(grant(row(), ttl=TTL_S))
    assert guarded.peer.ask(pub(b"t", b"1")) == [OK]
    guarded.nsq.loop.advance(TTL_S * SECOND)
    guarded.peer.frames()
    guarded.peer.send(pub(b"t", b"2") * 2)
    guarded.answer(grant(row("^other$"), ttl=TTL_S))
    assert guarded.peer.frames() == [(ERROR, b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""')]
    assert _depth(guarded.nsq, "t") == 1


def test_past_its_time_nothing_may_be_granted(guarded: Guarded) -> None:
    guarded.let_in(grant(row(), ttl=TTL_S))
    guarded.nsq.loop.advance(TTL_S * SECOND)
    guarded.peer.frames()
    guarded.peer.send(b"SUB t c\n")
    guarded.answer(grant(ttl=TTL_S))
    assert guarded.peer.frames() == [(ERROR, b'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"')]


def test_past_its_time_no_answer_is_a_refusal(guarded: Guarded) -> None:
    guarded.let_in(grant(row(), ttl=TTL_S))
    guarded.nsq.loop.advance(TTL_S * SECOND)
    guarded.peer.frames()
    guarded.peer.send(pub(b"t", b"x"))
    guarded.answer(None)
    assert guarded.peer.frames() == [FAILED]


def test_a_running_channel_is_never_cut(guarded: Guarded) -> None:
    guarded.let_in(grant(row(), ttl=1))
    assert guarded.peer.ask(b"SUB t c\nRDY 1\n") == [OK]
    guarded.nsq.loop.advance(10 * SECOND)
    guarded.nsq.engine.open_log("t")
    other = Guarded(guarded.nsq, guarded.authority)
    other.let_in(grant(row()))
    assert other.peer.ask(pub(b"t", b"x")) == [OK]
    ((_, message),) = guarded.peer.frames()
    guarded.peer.send(b"FIN " + message[10:26] + b"\nCLS\n")
    assert guarded.peer.frames() == [(RESPONSE, b"CLOSE_WAIT")]
    assert len(guarded.authority.asked) == 2


@pytest.mark.parametrize("other", [b"topic", b"to", b"tip"])
def test_permission_for_one_topic_is_none_for_the_next(guarded: Guarded, other: bytes) -> None:
    """The last topic is remembered by its whole name."""
    guarded.let_in(grant(row("^top$")))
    assert guarded.peer.ask(pub(b"top", b"1") * 2) == [OK, OK]
    refused = (ERROR, b'E_UNAUTHORIZED AUTH failed for PUB on "%s" ""' % other)
    assert guarded.peer.ask(pub(other, b"1")) == [refused]


def test_permission_to_subscribe_is_none_to_publish(guarded: Guarded) -> None:
    guarded.let_in(grant(row(".*", (".*",), "subscribe")))
    refused = (ERROR, b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""')
    assert guarded.peer.ask(b"SUB t c\n" + pub(b"t", b"1")) == [OK, refused]


def test_trap_11_mpub_is_looked_at_before_its_body(guarded: Guarded) -> None:
    """PUB is not: half of it is only waited for."""
    head = b"MPUB t\n" + struct.pack(">i", 1000)
    refused = (ERROR, b"E_AUTH_FIRST AUTH required before MPUB")
    assert guarded.peer.ask(head[:7]) == [refused]
    assert guarded.nsq.dial().ask(head) == [refused]
    assert guarded.nsq.dial().ask(b"MPUB t\n" + struct.pack(">i", -1)) == [refused]
    assert guarded.nsq.dial().ask(b"PUB t\n" + struct.pack(">i", 1000) + b"half") == []
    assert _depth(guarded.nsq, "t") is None


@pytest.mark.parametrize("channels", [(), ("^c$",), ("c",)])
def test_trap_26_publishing_needs_a_channel_that_matches_nothing(
    guarded: Guarded, channels: tuple[str, ...]
) -> None:
    guarded.let_in(grant(row(".*", channels)))
    assert guarded.peer.ask(pub(b"t", b"x")) == [
        (ERROR, b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""')
    ]


@pytest.mark.parametrize("channels", [("",), (".*",), ("^c$", "^$")])
def test_trap_26_with_such_a_channel_it_may(guarded: Guarded, channels: tuple[str, ...]) -> None:
    guarded.let_in(grant(row(".*", channels)))
    assert guarded.peer.ask(pub(b"t", b"x")) == [OK]
