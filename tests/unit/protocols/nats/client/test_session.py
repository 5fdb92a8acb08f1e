"""Sessions without sockets: the clock and the peers' reading are in our hands."""

from __future__ import annotations

import itertools
import random

import pytest
from support.fakes.loop import FakeNats, FakePeer
from support.native.routing import Subscriber

from broker.base import units
from broker.protocols.nats import limits
from broker.protocols.nats.auth.authenticator import Identity
from broker.protocols.nats.client.permissions import permit_for
from broker.protocols.nats.settings import Permissions, Rules, SubjectRule

SECOND = units.SECOND
QUIET = b'{"verbose":false,"pedantic":false,"headers":true,"no_responders":true}'


@pytest.fixture
def nats() -> FakeNats:
    return FakeNats()


def messages(subject: bytes, sid: bytes, bodies: list[bytes]) -> bytes:
    return b"".join(b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(b), b) for b in bodies)


def pubs(subject: bytes, bodies: list[bytes]) -> bytes:
    return b"".join(b"PUB %b %d\r\n%b\r\n" % (subject, len(b), b) for b in bodies)


# --- delivery


@pytest.mark.parametrize("size", [0, 1, 15, 16, 62, 63, 64, 254, 255, 256, 5_000])
def test_runs_arrive_whole_and_in_order(nats: FakeNats, size: int) -> None:
    publisher, one, two = nats.dial(), nats.dial(), nats.dial()
    one.send(b"SUB a.b 1\r\n")
    two.send(b"SUB a.> a-long-sid-of-its-own\r\n")
    bodies = [(b"%d" % i * size)[:size] for i in range(1_500)]
    publisher.send(pubs(b"a.b", bodies))
    assert one.take() == messages(b"a.b", b"1", bodies)
    assert two.take() == messages(b"a.b", b"a-long-sid-of-its-own", bodies)
    assert nats.frontend.traffic() == (1_500, 1_500 * size, 3_000, 3_000 * size)


def test_long_heads(nats: FakeNats) -> None:
    peer = nats.dial()
    subject, sid = b"s" * 2_000, b"i" * 1_500
    peer.send(b"SUB %b %b\r\n" % (subject, sid))
    bodies = [b"x"] * 300
    assert peer.talk(pubs(subject, bodies)) == messages(subject, sid, bodies)


def test_a_connection_with_two_matching_subscriptions_keeps_the_order(nats: FakeNats) -> None:
    peer, publisher = nats.dial(), nats.dial()
    peer.send(b"SUB a 1\r\nSUB * 2\r\n")
    publisher.send(pubs(b"a", [b"x", b"y", b"z"]))
    got = peer.take()
    for sid in (b"1", b"2"):
        found = [got.index(b"MSG a %b 1\r\n%b\r\n" % (sid, body)) for body in (b"x", b"y", b"z")]
        assert found == sorted(found)
    assert got.index(b"MSG a 2 1\r\nx") < got.index(b"MSG a 1 1\r\ny")


def test_runs_follow_changes_between_them(nats: FakeNats) -> None:
    one, two, publisher = nats.dial(), nats.dial(), nats.dial()
    run = pubs(b"a", [b"x"] * 3)
    one.send(b"SUB a 1\r\n")
    publisher.send(run)
    assert one.take().count(b"MSG") == 3
    two.send(b"SUB a 1\r\n")
    publisher.send(run)
    assert one.take().count(b"MSG") == two.take().count(b"MSG") == 3
    one.send(b"UNSUB 1\r\n")
    publisher.send(run)
    assert one.take() == b""
    assert two.take().count(b"MSG") == 3
    two.leave()
    publisher.send(run)
    assert nats.router.size == 0


def test_another_kind_of_sink_gets_every_message_of_a_run(nats: FakeNats) -> None:
    subscription = Subscriber(nats.router)
    subscription.subscribe(b"e", b"a")
    peer, publisher = nats.dial(), nats.dial()
    peer.send(b"SUB a 1\r\n")
    bodies = [b"%03d" % i for i in range(100)]
    publisher.send(pubs(b"a", bodies))
    assert [data for _, _, _, data in subscription.received] == bodies
    assert peer.take() == messages(b"a", b"1", bodies)
    subscription.close()


@pytest.mark.parametrize("headers", [False, True])
def test_headers(nats: FakeNats, *, headers: bool) -> None:
    publisher = nats.dial(QUIET, quiet=False)
    peer = nats.dial(QUIET if headers else b"{}", quiet=not headers)
    peer.send(b"SUB h 1\r\n")
    publisher.send(b"HPUB h 03  \t 005\r\nabcde\r\n" * 3 + b"HPUB h r 0 02\r\nhi\r\n")
    if headers:
        assert peer.take() == b"HMSG h 1 03 005\r\nabcde\r\n" * 3 + b"MSG h 1 r 02\r\nhi\r\n"
    else:
        assert peer.take() == b"MSG h 1 2\r\nde\r\n" * 3 + b"MSG h 1 r 02\r\nhi\r\n"


def test_echo_off(nats: FakeNats) -> None:
    peer, other = nats.dial(b'{"echo":false}'), nats.dial()
    peer.send(b"SUB a 1\r\nSUB a q 2\r\n")
    other.send(b"SUB a q 1\r\n")
    for _ in range(10):
        assert peer.talk(pubs(b"a", [b"x"] * 2)) == b""
        assert other.take().count(b"MSG") == 2


def test_oversize_messages_get_a_buffer_of_their_own(nats: FakeNats) -> None:
    peer = nats.dial()
    peer.send(b"SUB a 1\r\n")
    rng = random.Random(1)
    bodies = [rng.randbytes(size) for size in (40_000, 70_000, limits.NATS_MAX_PAYLOAD, 10)]
    data = pubs(b"a", bodies)
    cuts = [rng.randrange(len(data)) for _ in range(300)]
    assert peer.talk(data, cuts) == messages(b"a", b"1", bodies)


# --- subscriptions


@pytest.mark.parametrize("run", [1, 50])
def test_max_counts_from_the_start(nats: FakeNats, run: int) -> None:
    peer, publisher = nats.dial(), nats.dial()
    peer.send(b"SUB a 1\r\n")
    publisher.send(pubs(b"a", [b"x"]))
    peer.send(b"UNSUB 1 3\r\n")
    for _ in range(50 // run):
        publisher.send(pubs(b"a", [b"x"] * run))
    assert peer.take().count(b"MSG") == 3
    assert nats.router.size == 0
    peer.send(b"SUB b 1\r\n")
    publisher.send(pubs(b"b", [b"y"]))
    assert peer.take() == b"MSG b 1 1\r\ny\r\n"


def test_a_used_up_sid_is_free_within_the_same_read(nats: FakeNats) -> None:
    peer = nats.dial()
    sent = b"SUB a 1\r\nUNSUB 1 1\r\n" + pubs(b"a", [b"x"] * 2) + b"SUB b 1\r\n"
    assert peer.talk(sent + pubs(b"b", [b"y"])) == b"MSG a 1 1\r\nx\r\nMSG b 1 1\r\ny\r\n"
    assert peer.session.subscriptions == 1
    assert nats.router.size == 1


@pytest.mark.parametrize("limit", [b"", b" 1", b" 0", b" x", b" 1234567890"])
def test_unsub_at_once(nats: FakeNats, limit: bytes) -> None:
    peer = nats.dial()
    assert peer.talk(b"SUB a 1\r\n" + pubs(b"a", [b"x"])) == b"MSG a 1 1\r\nx\r\n"
    assert peer.talk(b"UNSUB 1%b\r\n" % limit + pubs(b"a", [b"y"])) == b""
    assert nats.router.size == 0


def test_unsub_without_a_number_cancels_a_limit_and_a_limit_may_rise(nats: FakeNats) -> None:
    peer = nats.dial()
    peer.send(b"SUB a 1\r\nUNSUB 1 2\r\nUNSUB 1 4\r\n")
    assert peer.talk(pubs(b"a", [b"x"] * 9)).count(b"MSG") == 4


def test_503s_do_not_count(nats: FakeNats) -> None:
    peer = nats.dial(QUIET, quiet=False)
    peer.send(b"SUB inbox 1\r\nUNSUB 1 1\r\n")
    status = b"HMSG inbox 1 36 36\r\nNATS/1.0 503\r\nNats-Subject: none\r\n\r\n\r\n"
    assert peer.talk(b"PUB none inbox 0\r\n\r\n" * 3) == status * 3
    assert peer.talk(b"PUB inbox 1\r\nx\r\n") == b"MSG inbox 1 1\r\nx\r\n"
    assert peer.talk(b"PUB none inbox 0\r\n\r\n") == b""


def test_a_second_sub_with_a_live_sid_is_ignored(nats: FakeNats) -> None:
    peer = nats.dial(None)
    assert peer.talk(b"SUB a 1\r\nSUB b q 1\r\n") == b"+OK\r\n+OK\r\n"
    assert peer.talk(b"PUB b 1\r\nx\r\n") == b"+OK\r\n"
    assert peer.session.subscriptions == 1


def test_subscriptions_go_with_the_connection_in_slices(nats: FakeNats) -> None:
    peer = nats.dial()
    count = limits.NATS_TEARDOWN * 2 + 7
    peer.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(count)))
    assert nats.router.size == count
    peer.transport.closed = True
    peer.conn.connection_lost(None)
    assert nats.router.size == count - limits.NATS_TEARDOWN // 2  # of two tokens each
    nats.loop.run()
    assert nats.router.size == 0
    nats.dial().send(pubs(b"s.5", [b"x"]))


def test_connections_that_close_at_once_share_a_turn(nats: FakeNats) -> None:
    """Thousands of them would block the loop if each had a share of its own."""
    count = limits.NATS_TEARDOWN // 2  # of two tokens each: all that a turn removes
    peers = [nats.dial() for _ in range(5)]
    for peer in peers:
        peer.send(b"".join(b"SUB s.%d workers %d\r\n" % (i, i) for i in range(count)))
    other = nats.dial()
    other.send(b"SUB s.* workers 1\r\n")
    for peer in peers:
        peer.transport.closed = True
        peer.conn.connection_lost(None)
    assert nats.router.size == 4 * count + 1
    publisher = nats.dial()
    publisher.send(pubs(b"s.5", [b"x"] * 100))
    assert other.take().count(b"MSG s.5 ") == 100  # none is given to a member that has gone
    nats.loop.run()
    assert nats.router.size == 1


def test_removed_subscriptions_are_kept_for_monitoring(nats: FakeNats) -> None:
    count = limits.NATS_TEARDOWN // 2
    peers = [nats.dial() for _ in range(3)]
    for peer in peers:
        peer.send(b"".join(b"SUB s.%d workers %d\r\n" % (i, i) for i in range(count)))
    kept = [peer.session.list_removed_subs(100 + i) for i, peer in enumerate(peers)]
    for peer in peers:
        peer.transport.closed = True
        peer.conn.connection_lost(None)
    assert not kept[-1]  # in a later turn: this takes longer than the removal
    nats.loop.run()
    assert [len(subs) for subs in kept] == [100, 101, 102]
    subject, queue, sid, delivered, most = kept[0][0]
    assert (subject, queue, delivered, most) == (b"s." + sid, b"workers", 0, 0)


def limited(nats: FakeNats, peer: FakePeer, *allowed: str, **limits: int) -> None:
    """What a reload does to a session whose rights have changed."""
    rules = tuple(SubjectRule(subject) for subject in allowed)
    permissions = Permissions(subscribe=Rules(allow=rules))
    identity = Identity(permissions=permissions, **limits)
    peer.session.bind(nats.account, identity, permit_for(permissions))
    peer.session.prune()


def ended(lines: bytes) -> int:
    return lines.count(b"-ERR 'Permissions Violation for Subscription to ")


MANY = 500


def test_rights_that_end_are_looked_at_in_parts(nats: FakeNats) -> None:
    """Meanwhile nothing is delivered to what has no right any more, and input waits."""
    peer, other = nats.dial(), nats.dial()
    peer.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(MANY)) + b"SUB kept k\r\n")
    limited(nats, peer, "kept", "x")
    assert 0 < peer.session.subscriptions - 1 < MANY  # the first part
    other.read(b"".join(pubs(b"s.%d" % i, [b"no"] * 2) for i in range(MANY)))
    other.read(pubs(b"kept", [b"yes"] * 2))
    peer.read(b"SUB x new\r\nPUB x 2\r\nme\r\n")
    assert peer.session.subscriptions > 1
    nats.loop.run()
    got = peer.take()
    assert ended(got) == MANY
    assert b"no" not in got.replace(b"-ERR", b"")
    assert got.count(b"MSG kept k 3\r\nyes\r\n") == 2
    assert got.endswith(b"MSG x new 2\r\nme\r\n")
    assert peer.session.subscriptions == 2


def test_what_used_up_its_messages_while_rights_end_is_removed_once(nats: FakeNats) -> None:
    peer, other = nats.dial(), nats.dial()
    peer.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(MANY)))
    peer.send(b"".join(b"SUB once.%d o%d\r\nUNSUB o%d 1\r\n" % (i, i, i) for i in range(MANY)))
    limited(nats, peer, "once.>")
    other.read(b"".join(pubs(b"once.%d" % i, [b"1", b"2"]) for i in range(MANY)))
    assert peer.session.subscriptions > 0
    nats.loop.run()
    got = peer.take()
    assert (ended(got), got.count(b"MSG once.")) == (MANY, MANY)
    assert peer.session.subscriptions == nats.router.size == 0


def test_rights_change_again_while_they_end(nats: FakeNats) -> None:
    """The last ones count, for those too that were looked at before."""
    peer = nats.dial()
    peer.send(b"".join(b"SUB s.%d %d\r\nSUB t.%d t%d\r\n" % (i, i, i, i) for i in range(MANY)))
    limited(nats, peer, "s.*")
    limited(nats, peer, "t.*", subscriptions_max=MANY)
    nats.loop.run()
    left = peer.session.subscriptions
    assert 0 < left < MANY  # some of "t" have ended with the first change
    assert ended(peer.take()) == 2 * MANY - left
    assert peer.talk(b"PING\r\n") == b"PONG\r\n"


def test_a_login_while_rights_end_counts_for_all(nats: FakeNats) -> None:
    """Also for subscriptions that were looked at with the rights of before."""
    peer = nats.dial()
    peer.send(b"".join(b"SUB s.%d %d\r\nSUB t.%d t%d\r\n" % (i, i, i, i) for i in range(MANY)))
    limited(nats, peer, "s.*")
    permissions = Permissions(subscribe=Rules(allow=(SubjectRule("t.*"),)))
    peer.session.bind(nats.account, Identity(permissions=permissions), permit_for(permissions))
    nats.loop.run()
    peer.take()
    got = peer.talk(b"".join(pubs(b"s.%d" % i, [b"x"]) for i in range(MANY)) + b"PING\r\n")
    assert got == b"PONG\r\n"
    assert 0 < peer.session.subscriptions < MANY  # some of "t" have ended with the first rights


def test_a_lowered_limit_counts_what_the_rights_leave(nats: FakeNats) -> None:
    peers = nats.dial(), nats.dial()
    for peer in peers:
        peer.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(MANY)))
        peer.send(b"SUB kept a\r\nSUB kept b\r\n")
    limited(nats, peers[0], "kept", subscriptions_max=2)
    limited(nats, peers[1], "kept", subscriptions_max=1)
    nats.loop.run()
    assert [peer.closed for peer in peers] == [False, True]
    assert peers[1].take().endswith(b"-ERR 'maximum subscriptions exceeded'\r\n")


def test_a_reload_that_changes_nothing_while_rights_end(nats: FakeNats) -> None:
    peer = nats.dial()
    peer.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(MANY)) + b"SUB kept a\r\n")
    limited(nats, peer, "kept", subscriptions_max=1)
    peer.session.apply_limits(peer.session.identity)
    peer.session.end_above_limit()
    nats.loop.run()
    assert (ended(peer.take()), peer.closed, peer.session.subscriptions) == (MANY, False, 1)


def test_the_rights_of_many_end_in_parts_together(nats: FakeNats) -> None:
    """A turn of the loop is not the longer, the more sessions there are."""
    peers = [nats.dial() for _ in range(20)]
    for peer in peers:
        peer.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(50)))
    parts = [nats.router.size]
    for peer in peers:
        limited(nats, peer, "kept")
    parts.append(nats.router.size)
    while nats.router.size:
        nats.loop.run_once()
        parts.append(nats.router.size)
    assert max(before - after for before, after in itertools.pairwise(parts)) < 200
    nats.loop.run()
    for peer in peers:
        assert ended(peer.take()) == 50
        assert peer.talk(b"PING\r\n") == b"PONG\r\n"


def test_a_login_while_rights_end(nats: FakeNats) -> None:
    """Subscriptions of before are removed in parts too, and get nothing that has no right."""
    peer, other = nats.dial(), nats.dial()
    peer.send(b"".join(b"SUB s.%d.a %d\r\n" % (i, i) for i in range(4 * MANY)))
    peer.session.pause_input()
    limited(nats, peer, "kept")
    done: list[bool] = []
    peer.session.unsubscribe_all(lambda: done.append(True))
    other.read(b"".join(pubs(b"s.%d.a" % i, [b"no"]) for i in range(4 * MANY)))
    nats.loop.run()
    peer.session.unpause_input()
    assert done == [True]
    got = peer.talk(b"PING\r\n")
    assert (ended(got), b"MSG" in got, got[-6:]) == (4 * MANY, False, b"PONG\r\n")


def test_who_leaves_while_rights_end_leaves_nothing_behind(nats: FakeNats) -> None:
    peer = nats.dial()
    peer.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(MANY)))
    limited(nats, peer, "kept")
    peer.leave()
    assert nats.router.size == 0


@pytest.mark.parametrize("count", [1, limits.NATS_TEARDOWN * 2])
def test_an_error_after_the_last_subscription_closes(
    nats: FakeNats, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """At once or in a later turn: the client must not wait for ever."""

    def fail() -> None:
        raise ValueError("as in a login")

    peer = nats.dial()
    peer.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(count)))
    peer.session.unsubscribe_all(fail)
    nats.loop.run()
    assert peer.closed
    assert "connection dropped after an internal error" in caplog.text


# --- limits


def test_limits_of_subscriptions() -> None:
    nats = FakeNats(max_subscriptions=2, max_sub_tokens=3)
    peer = nats.dial()
    refused = b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert peer.talk(b"SUB a.b.c 1\r\nSUB b 2\r\nSUB c 3\r\nSUB b 2\r\n") == refused * 2
    assert peer.talk(b"UNSUB 1\r\nSUB c 3\r\nPING\r\n") == b"PONG\r\n"
    text = b"-ERR 'Permissions Violation for Subscription to \"a.b.c.d\", too many tokens'\r\n"
    assert peer.talk(b"SUB a.b.c.d 4\r\n") == text


def test_max_connections() -> None:
    nats = FakeNats(max_connections=1)
    first = nats.dial()
    second = FakePeer(nats.listener)
    got = second.take()
    assert got.startswith(b"INFO ")
    assert got.endswith(b"} \r\n-ERR 'maximum connections exceeded'\r\n")
    assert second.closed
    assert first.talk(b"PING\r\n") == b"PONG\r\n"
    first.leave()
    assert nats.dial().talk(b"PING\r\n") == b"PONG\r\n"


def test_a_fatal_error_comes_after_what_was_due_and_ends_the_input(nats: FakeNats) -> None:
    peer = nats.dial()
    got = peer.talk(b"PING\r\nFOO\r\nPING\r\n")
    assert got == b"PONG\r\n-ERR 'Unknown Protocol Operation'\r\n"
    assert peer.closed
    assert nats.frontend.sessions == set()


# --- the clock


def test_first_ping_comes_soon_after_connect(nats: FakeNats) -> None:
    peer = nats.dial()
    nats.loop.advance(2 * SECOND - 1)
    assert peer.take() == b""
    nats.loop.advance(SECOND // 2)
    assert peer.take() == b"PING\r\n"


def test_without_connect_the_first_ping_takes_the_whole_interval(nats: FakeNats) -> None:
    peer = nats.dial(None)
    nats.loop.advance(limits.NATS_PING_INTERVAL - 1)
    assert peer.take() == b""
    nats.loop.advance(1)
    assert peer.take() == b"PING\r\n"


def test_stale() -> None:
    nats = FakeNats(ping_interval_ns=3 * SECOND, ping_max=2)
    peer = nats.dial()
    nats.loop.advance(6 * SECOND)
    assert peer.take() == b"PING\r\n" * 2
    nats.loop.advance(3 * SECOND)
    assert peer.take() == b"-ERR 'Stale Connection'\r\n"
    assert peer.closed
    assert nats.frontend.stale == 1


def test_pong_keeps_a_connection() -> None:
    nats = FakeNats(ping_interval_ns=SECOND, ping_max=1)
    peer = nats.dial()
    for _ in range(20):
        nats.loop.advance(SECOND)
        if peer.take():
            peer.send(b"PONG\r\n")
    assert not peer.closed


@pytest.mark.parametrize("activity", [b"PUB a 0\r\n\r\n", b"SUB a 1\r\n", b"PING\r\n"])
def test_activity_puts_pings_off_once_the_round_trip_is_known(activity: bytes) -> None:
    nats = FakeNats(ping_interval_ns=4 * SECOND)
    peer = nats.dial()
    peer.send(activity)
    nats.loop.advance(3 * SECOND)
    assert peer.take().replace(b"PONG\r\n", b"") == b"PING\r\n"  # measures, whatever goes on
    peer.send(b"PONG\r\n")
    for _ in range(20):
        nats.loop.advance(SECOND)
        assert peer.talk(activity) in (b"", b"PONG\r\n")
    nats.loop.advance(8 * SECOND)
    assert peer.take() == b"PING\r\n"


def test_a_gone_connection_needs_no_clock(nats: FakeNats) -> None:
    peer = nats.dial()
    peer.leave()
    nats.loop.advance(10 * limits.NATS_PING_INTERVAL)


# --- slow peers


def test_pending_bytes_close_at_once() -> None:
    nats = FakeNats(max_pending=1 << 20, max_payload=1 << 16)
    slow, healthy, publisher = nats.dial(), nats.dial(), nats.dial()
    for peer in (slow, healthy):
        peer.send(b"SUB a 1\r\n")
    slow.transport.room = 0
    body = b"x" * 60_000
    for _ in range(30):
        publisher.read(pubs(b"a", [body]))
        nats.loop.advance(limits.NATS_STALL)
    assert slow.closed
    assert slow.take() == b""
    assert slow.session.closed_because == "Slow Consumer (Pending Bytes)"
    assert nats.frontend.slow_consumers == 1
    assert healthy.take().replace(b"PING\r\n", b"") == messages(b"a", b"1", [body] * 30)


def test_write_deadline(nats: FakeNats) -> None:
    slow, publisher = nats.dial(), nats.dial()
    slow.send(b"SUB a 1\r\n")
    slow.transport.room = 5
    publisher.send(pubs(b"a", [b"x"]))
    nats.loop.advance(limits.NATS_WRITE_DEADLINE - 1)
    assert not slow.closed
    nats.loop.advance(1)
    assert slow.closed
    assert slow.session.closed_because == "Slow Consumer (Write Deadline)"
    assert nats.frontend.slow_consumers == 1


def test_the_write_deadline_of_who_reads_slowly() -> None:
    nats = FakeNats(write_timeout="retry")
    slow, publisher = nats.dial(), nats.dial()
    slow.send(b"SUB a 1\r\n")
    slow.transport.room = 5
    publisher.send(pubs(b"a", [bytes(50)]))
    for _ in range(3):
        nats.loop.advance(limits.NATS_WRITE_DEADLINE - 1)
        slow.transport.read_some(1)
        nats.loop.advance(1)
        assert not slow.closed
    nats.loop.advance(limits.NATS_WRITE_DEADLINE - 1)
    assert not slow.closed
    nats.loop.advance(1)
    assert slow.closed
    assert slow.session.closed_because == "Slow Consumer (Write Deadline)"
    assert nats.frontend.slow_consumers == 1


def test_a_peer_that_reads_in_time_is_kept(nats: FakeNats) -> None:
    slow, publisher = nats.dial(), nats.dial()
    slow.send(b"SUB a 1\r\n")
    slow.transport.room = 5
    publisher.send(pubs(b"a", [b"x"] * 3))
    nats.loop.advance(limits.NATS_WRITE_DEADLINE - 1)
    publisher.send(pubs(b"a", [b"y"] * 3))
    slow.transport.read_all()
    nats.loop.advance(limits.NATS_WRITE_DEADLINE)
    assert not slow.closed
    assert slow.take().replace(b"PING\r\n", b"") == messages(b"a", b"1", [b"x"] * 3 + [b"y"] * 3)


def test_a_closing_peer_that_does_not_read_goes_at_the_deadline(nats: FakeNats) -> None:
    peer = nats.dial()
    peer.transport.room = 0
    peer.send(b"PING\r\nFOO\r\n")
    assert not peer.closed
    nats.loop.advance(limits.NATS_WRITE_DEADLINE)
    assert peer.closed
    assert nats.frontend.slow_consumers == 0


def test_publishers_rest_while_a_subscriber_is_far_behind() -> None:
    nats = FakeNats(max_pending=1 << 20)
    slow, publisher = nats.dial(), nats.dial()
    slow.send(b"SUB a 1\r\n")
    slow.transport.room = 0
    body = b"x" * 50_000
    sent = 0
    while publisher.transport.reading:
        publisher.send(pubs(b"a", [body]))
        sent += 1
    assert sent < 20
    nats.loop.advance(limits.NATS_STALL - 1)
    assert not publisher.transport.reading
    nats.loop.advance(1)
    assert publisher.transport.reading
    publisher.send(pubs(b"a", [body]))
    assert not publisher.transport.reading
    slow.transport.read_all()
    assert publisher.transport.reading
    assert slow.take() == messages(b"a", b"1", [body] * (sent + 1))
    slow.leave()
    publisher.leave()


def test_a_resting_publisher_goes_on_when_the_slow_one_leaves() -> None:
    nats = FakeNats(max_pending=1 << 20)
    slow, publisher = nats.dial(), nats.dial()
    slow.send(b"SUB a 1\r\n")
    slow.transport.room = 0
    while publisher.transport.reading:
        publisher.send(pubs(b"a", [b"x" * 50_000]))
    slow.leave()
    assert publisher.transport.reading


def test_a_login_in_pieces() -> None:
    """Blanks behind CONNECT do not pile up, so that later pieces begin in the middle of it."""
    nats = FakeNats()

    class Strict(type(nats.handshake.authenticator)):  # type: ignore[misc]
        required = must_connect = True
        anonymous = None

        def requires_login(self, kind: str) -> bool:
            return True

    nats.handshake.authenticator = Strict()
    nats.frontend.must_connect = True
    peer = nats.dial(None)
    peer.send(b"CONNECT" + b" " * 200)
    peer.send(b" " * 200)
    assert peer.talk(b'{"verbose":false}\r\nPING\r\n') == b"PONG\r\n"
    other = nats.dial(None)
    assert other.talk(b" CONNECT {}\r\n") == b"-ERR 'Authorization Violation'\r\n"
