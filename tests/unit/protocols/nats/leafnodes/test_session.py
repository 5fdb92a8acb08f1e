"""Leaf sessions without sockets: the clock and the peers' reading are in our hands."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.fakes.leaf import FakeLeafs, LeafPeer

from broker.base import units
from broker.protocols.nats import errors
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.leafnodes import limits as leaf_limits
from broker.protocols.nats.settings import Leafnodes

SECOND = units.SECOND


@pytest.fixture
def hub() -> FakeLeafs:
    return FakeLeafs()


def pubs(subject: bytes, bodies: list[bytes]) -> bytes:
    return b"".join(b"PUB %b %d\r\n%b\r\n" % (subject, len(b), b) for b in bodies)


def lmsgs(subject: bytes, bodies: list[bytes], more: bytes = b"") -> bytes:
    return b"".join(b"LMSG %b %b%d\r\n%b\r\n" % (subject, more, len(b), b) for b in bodies)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 62, 63, 64, 254, 255, 256, 5_000])
def test_runs_arrive_whole_and_in_order(hub: FakeLeafs, size: int) -> None:
    one, two, client = hub.join(), hub.join(name="two"), hub.nats.dial()
    one.send(b"LS+ a.b\r\n")
    two.send(b"LS+ a.>\r\nLS+ >\r\n")
    client.send(b"SUB *.b long-sid\r\n")
    for peer in (one, two, client):
        peer.take()
    bodies = [(b"%d" % i * size)[:size] for i in range(1_500)]
    publisher = hub.nats.dial()
    publisher.send(pubs(b"a.b", bodies))
    assert one.take() == two.take() == lmsgs(b"a.b", bodies)
    client.take()
    one.send(lmsgs(b"a.b", bodies))
    assert two.take() == lmsgs(b"a.b", bodies)
    assert client.take() == b"".join(b"MSG a.b long-sid %d\r\n%b\r\n" % (len(b), b) for b in bodies)
    assert one.take() == b""
    (session,) = [s for s in hub.nats.account.leafs if s.peer_name == "peer"]
    counts = (session.in_msgs, session.in_bytes, session.out_msgs, session.out_bytes)
    assert counts == (1_500, 1_500 * size) * 2


@pytest.mark.parametrize("headers", [False, True])
def test_headers(hub: FakeLeafs, *, headers: bool) -> None:
    client = hub.nats.dial(b'{"headers":true}')
    peer = hub.join(headers=headers)
    peer.send(b"LS+ h\r\n")
    client.send(b"HPUB h 03  \t 005\r\nabcde\r\n" * 3 + b"HPUB h r 0 02\r\nhi\r\n")
    if headers:
        assert peer.take() == b"HMSG h 03 005\r\nabcde\r\n" * 3 + b"LMSG h r 02\r\nhi\r\n"
    else:
        assert peer.take() == b"LMSG h 2\r\nde\r\n" * 3 + b"LMSG h r 02\r\nhi\r\n"


def test_messages_of_the_server_itself(hub: FakeLeafs) -> None:
    peer = hub.join()
    peer.send(b"LS+ s\r\nLS+ s q 1\r\n")
    assert hub.nats.account.publish(b"s", b"body", b"reply", b"head") == 2
    hub.loop.run()
    assert peer.take() == b"HMSG s + reply q 4 8\r\nheadbody\r\n"


def test_subjects_that_would_break_the_line_stay_here(hub: FakeLeafs) -> None:
    peer, client = hub.join(), hub.nats.dial()
    peer.send(b"LS+ >\r\n")
    client.send(b"PUB a\rb 1\r\nx\r\nPUB a r\rs 1\r\nx\r\nPUB c 1\r\ny\r\n")
    assert peer.take() == b"LMSG c 1\r\ny\r\n"


def test_publishers_wait_for_a_link_that_is_behind() -> None:
    hub = FakeLeafs(max_pending=400_000, max_payload=10_000)
    peer, client = hub.join(), hub.nats.dial()
    peer.send(b"LS+ a\r\n")
    peer.transport.room = 0
    run = pubs(b"a", [bytes(1_000)] * 60)
    client.send(run)
    for _ in range(20):
        if not client.transport.reading:
            break
        client.send(run)
    assert not client.transport.reading
    peer.transport.read_all()
    hub.loop.run()
    assert client.transport.reading
    assert not peer.closed


def test_a_link_that_does_not_read_is_closed() -> None:
    hub = FakeLeafs(max_pending=400_000, max_payload=100_000)
    peer = hub.join()
    peer.send(b"LS+ a\r\n")
    peer.transport.room = 0
    for _ in range(20):
        hub.nats.account.publish(b"a", bytes(100_000))
    hub.loop.run()
    assert peer.closed
    assert hub.nodes.handshake.slow == 1
    assert hub.nats.account.slow_consumers == 1
    assert hub.router.size == 0


def test_the_write_deadline() -> None:
    hub = FakeLeafs(write_deadline_ns=3 * SECOND)
    peer = hub.join()
    session = peer.session
    peer.send(b"LS+ a\r\n")
    peer.transport.room = 0
    hub.nats.account.publish(b"a", b"x")
    hub.loop.run()
    hub.loop.advance(2 * SECOND)
    assert not peer.closed
    hub.loop.advance(2 * SECOND)
    assert peer.closed
    assert session.closed_because == errors.NATS_CLOSED_DEADLINE


@pytest.mark.parametrize("how", ["default", "close"])
def test_the_write_deadline_of_a_peer_that_reads_slowly(how: str) -> None:
    leafnodes = Leafnodes(("127.0.0.1", 7422), write_deadline_ns=3 * SECOND, write_timeout=how)
    hub = FakeLeafs(leafnodes=leafnodes)
    peer = hub.join()
    peer.send(b"LS+ a\r\n")
    peer.transport.room = 0
    hub.nats.account.publish(b"a", b"x")
    hub.loop.run()
    hub.loop.advance(2 * SECOND)
    peer.transport.read_some(1)
    hub.loop.advance(2 * SECOND)
    assert peer.closed is (how == "close")
    hub.loop.advance(3 * SECOND)
    assert peer.closed


def test_pings_and_a_peer_that_is_gone() -> None:
    hub = FakeLeafs(ping_interval_ns=10 * SECOND)
    peer = hub.join()
    hub.loop.advance(13 * SECOND // 10)
    assert peer.take() == b"PING\r\n"
    peer.send(b"PONG\r\n")
    session = peer.session
    assert session.rtt_ns > 0
    hub.loop.advance(20 * SECOND)
    assert peer.take() == b"PING\r\n" * 2
    hub.loop.advance(10 * SECOND)
    assert peer.take() == b"-ERR 'Stale Connection'\r\n"
    assert peer.closed
    assert session.closed_because == errors.NATS_CLOSED_STALE


def test_a_busy_leaf_is_not_pinged() -> None:
    hub = FakeLeafs(ping_interval_ns=10 * SECOND)
    peer = hub.join()
    hub.loop.advance(2 * SECOND)
    peer.send(b"PONG\r\n")
    peer.take()
    for _ in range(10):
        hub.loop.advance(5 * SECOND)
        peer.send(b"LS+ a\r\nLS- a\r\n")
    assert peer.take() == b""


def test_a_first_operation_in_pieces(hub: FakeLeafs) -> None:
    """Blanks behind its name do not pile up, so that later pieces begin in the middle of it."""
    peer = hub.dial()
    peer.send(b"CONNECT" + b" " * 200)
    peer.send(b" " * 200)
    peer.send(b'{"name":"n"}\r\n')
    assert b"connect_info" in peer.take()


def test_a_peer_that_says_nothing() -> None:
    hub = FakeLeafs()
    peer = hub.dial()
    hub.loop.advance(nats_limits.NATS_AUTH_TIMEOUT)
    assert peer.take() == b"-ERR 'Authentication Timeout'\r\n"
    assert peer.closed


def test_a_peer_that_is_too_old_is_kept_for_a_while(hub: FakeLeafs) -> None:
    settings = hub.nodes.context.settings
    assert settings.leafnodes is not None
    old = replace(settings.leafnodes, min_version="2.10.0")
    hub.nodes.context.settings = replace(settings, leafnodes=old)
    peer = hub.dial()
    peer.send(b'CONNECT {"version":"2.9.0"}\r\n')
    assert b"minimum version" in peer.take()
    hub.loop.advance(4 * SECOND)
    assert not peer.closed
    hub.loop.advance(2 * SECOND)
    assert peer.closed


@pytest.mark.parametrize("more", [b"PING\r\n", b"LS+ a\r\n", b"LMSG a 1\r\nx\r\n"])
def test_a_server_that_is_too_old_is_not_heard(hub: FakeLeafs, more: bytes) -> None:
    """What it sends with its CONNECT, before the link has an account."""
    settings = hub.nodes.context.settings
    assert settings.leafnodes is not None
    old = replace(settings.leafnodes, min_version="2.10.0")
    hub.nodes.context.settings = replace(settings, leafnodes=old)
    peer = hub.dial()
    peer.send(b'CONNECT {"version":"2.9.0"}\r\n' + more)
    assert peer.take().endswith(b'minimum version required is "2.10.0"\'\r\n')
    assert hub.router.size == 0
    assert not peer.closed
    hub.loop.advance(6 * SECOND)
    assert peer.closed


def test_a_gone_peer_takes_its_interest_along_bit_by_bit(hub: FakeLeafs) -> None:
    peer, other = hub.join(), hub.join(name="other")
    count = nats_limits.NATS_TEARDOWN + 1_000
    peer.send(b"".join(b"LS+ s.%d\r\n" % i for i in range(count)))
    other.hear()
    assert hub.router.size == count
    assert sum(key.startswith(b"s.") for key in other.wants) == count
    peer.leave()
    other.hear()
    assert hub.router.size == 0
    assert not [key for key in other.wants if key.startswith(b"s.")]


def test_weights_are_what_counts_between_leafs(hub: FakeLeafs) -> None:
    peers = [hub.join(name=f"n{i}") for i in range(2)]
    for peer, weight in zip(peers, (1, 9), strict=True):
        peer.send(b"LS+ w q %d\r\n" % weight)
    client = hub.nats.dial()
    for _ in range(1_000):
        client.send(b"PUB w 1\r\nx\r\n")
    got = [peer.take().count(b"LMSG w | q 1") for peer in peers]
    assert sum(got) == 1_000
    assert 30 < got[0] < 200  # about a tenth


def test_a_new_leaf_gets_interest_bit_by_bit(hub: FakeLeafs) -> None:
    """What changes in between is announced correctly, whether or not the leaf knew it."""
    client = hub.nats.dial()
    count = 3 * leaf_limits.NATS_LEAF_ANNOUNCE
    client.send(b"".join(b"SUB s.%d %d\r\n" % (i, i) for i in range(count)))
    peer = hub.dial()
    peer.read(b'CONNECT {"name":"peer"}\r\n')
    client.read(b"UNSUB 0\r\nUNSUB %d\r\nSUB new new\r\nSUB s.5 again\r\n" % (count - 1))
    client.read(b"UNSUB %d\r\nSUB s.%d back\r\n" % (count - 2, count - 2))
    hub.loop.run()
    lines = peer.take().splitlines()
    assert lines[1].startswith(b"LS+ $LDS.")
    known: set[bytes] = set()
    for line in lines[2:]:
        what, subject = line.split(b" ")
        assert (subject in known) == (what == b"LS-")
        known.symmetric_difference_update({subject})
    assert known == {b"s.%d" % i for i in range(1, count - 1)} | {b"new"}


class Model:
    """Who wants what, kept as plain as can be."""

    def __init__(self) -> None:
        self.clients: dict[tuple[int, int], bytes] = {}
        self.leafs: dict[LeafPeer, dict[bytes, int]] = {}
        self.roles: dict[LeafPeer, tuple[bool, str]] = {}

    def expected(self, peer: LeafPeer) -> dict[bytes, int]:
        is_hub, cluster = self.roles[peer]
        found: dict[bytes, int] = {}
        for key in self.clients.values():
            found[key] = found.get(key, 0) + 1
        for other, wants in self.leafs.items():
            other_is_hub, other_cluster = self.roles[other]
            if other is peer or (cluster and cluster == other_cluster):
                continue
            if is_hub and other_is_hub:
                continue
            for key, weight in wants.items():
                found[key] = found.get(key, 0) + weight
        return {key: count if b" " in key else 1 for key, count in found.items()}


@pytest.mark.parametrize("seed", range(12))
def test_interest_is_what_a_plain_count_gives(seed: int) -> None:
    rng = random.Random(seed)
    hub, model = FakeLeafs(), Model()
    clients = [hub.nats.dial() for _ in range(3)]
    keys = [b"a", b"b", b"a.*", b">", b"a q", b"a r", b"b q"]
    sids = 0
    for step in range(400):
        what = rng.random()
        if what < 0.08 and len(model.leafs) < 6:
            is_hub, cluster = rng.random() < 0.3, rng.choice(["", "", "c", "d"])
            peer = hub.join(name=f"n{step}", cluster=cluster, is_hub=is_hub)
            model.leafs[peer] = {}
            model.roles[peer] = (is_hub, cluster)
        elif what < 0.11 and model.leafs:
            peer = rng.choice(list(model.leafs))
            peer.leave()
            del model.leafs[peer], model.roles[peer]
        elif what < 0.4:
            sids += 1
            at, key = rng.randrange(3), rng.choice(keys)
            clients[at].send(b"SUB %b %d\r\n" % (key, sids))
            model.clients[at, sids] = key
        elif what < 0.65 and model.clients:
            at, sid = rng.choice(list(model.clients))
            clients[at].send(b"UNSUB %d\r\n" % sid)
            del model.clients[at, sid]
        elif what < 0.85 and model.leafs:
            peer, key = rng.choice(list(model.leafs)), rng.choice(keys)
            weight = rng.randint(1, 4) if b" " in key else 1
            peer.send(b"LS+ " + key + (b" %d\r\n" % weight if b" " in key else b"\r\n"))
            model.leafs[peer][key] = weight
        elif model.leafs:
            peer, key = rng.choice(list(model.leafs)), rng.choice(keys)
            peer.send(b"LS- " + key + b"\r\n")
            model.leafs[peer].pop(key, None)
        for peer in model.leafs:
            peer.hear()
            wants = {k: v for k, v in peer.wants.items() if not k.startswith(b"$LDS.")}
            assert wants == model.expected(peer), step
