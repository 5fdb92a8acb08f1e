"""Sessions on a clock that stands: order of answers, heartbeats, endings."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.fakes.loop import FakeTransport
from support.fakes.nsq import (
    ERROR,
    HEARTBEAT,
    OK,
    RESPONSE,
    FakeNsq,
    MakeNsq,
    NsqPeer,
    message_id,
    mpub,
    not_in_flight,
    pub,
    shown,
    sized,
)

from broker.base import units
from broker.net import limits as net_limits
from broker.protocols.access import Access
from broker.protocols.nsq import limits

SECOND = units.SECOND
CLOSE_WAIT = (RESPONSE, b"CLOSE_WAIT")


# --- order of answers


def test_answers_keep_the_order_of_commands(nsq: FakeNsq) -> None:
    peer = nsq.consumer(b"t", 0)
    fin = b"FIN %s\n" % message_id(77)
    data = pub(b"t", b"a") + fin + pub(b"u", b"b") + pub(b"t", b"c") + fin + mpub(b"t", b"d", b"e")
    assert peer.ask(data + b"CLS\n" + pub(b"u", b"f")) == [
        OK,
        not_in_flight("FIN", 77),
        OK,
        OK,
        not_in_flight("FIN", 77),
        OK,
        CLOSE_WAIT,
        OK,
    ]
    assert nsq.engine.log("t").message_count == 4
    assert nsq.engine.log("u").message_count == 2


def test_a_fatal_error_comes_behind_what_was_published(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    data = pub(b"t", b"a") * 300 + b"SUB t\n" + pub(b"t", b"never")
    *oks, last = peer.ask(data)
    assert oks == [OK] * 300
    assert last == (ERROR, b"E_INVALID SUB insufficient number of parameters")
    assert peer.closed
    assert nsq.engine.log("t").message_count == 300


def test_everything_in_one_read_and_byte_by_byte(nsq: FakeNsq) -> None:
    data = (
        b"  V2IDENTIFY\n" + sized(b"{}") + pub(b"t", b"a") + b"SUB t c\nRDY 5\n" + mpub(b"t", b"b")
    )
    for cuts in ([], list(range(len(data)))):
        peer = nsq.dial(greet=False)
        frames = peer.ask(data, cuts)
        assert frames[:3] == [OK, OK, OK]
        assert [f for f in frames[3:] if f[0] == RESPONSE] == [OK]
        assert [shown(f)[2] for f in frames if f[0] == 2] == [b"a", b"b"]
        peer.leave()
        nsq.engine.delete_log("t")


# --- publishing


def test_mpub_makes_its_topic_before_its_body(nsq: FakeNsq) -> None:
    nsq.dial().send(b"MPUB t\n\0\0")
    assert nsq.engine.log("t") is not None
    assert nsq.dial().ask(b"MPUB u\n\0\0\0\0") == [(ERROR, b"E_BAD_BODY MPUB invalid body size 0")]
    assert nsq.engine.log("u") is not None
    nsq.dial().send(b"PUB v\n\0\0\0\5a")
    assert nsq.engine.log("v") is None


def test_trap_20_a_full_ephemeral_topic_refuses_what_it_cannot_keep(make_nsq: MakeNsq) -> None:
    nsq = make_nsq(engine={"memory_bytes_max": 4096, "memory_segment_bytes": 4096})
    peer = nsq.dial()
    *oks, last = peer.ask(pub(b"t#ephemeral", b"x" * 1000) * 10)
    assert oks == [OK] * 3
    assert last == (ERROR, b"E_PUB_FAILED PUB failed memory limit of the topic reached")
    assert peer.closed
    assert nsq.engine.log("t#ephemeral").message_count == 3


def test_an_mpub_is_stored_whole_or_not_at_all(make_nsq: MakeNsq) -> None:
    nsq = make_nsq(engine={"memory_bytes_max": 4096, "memory_segment_bytes": 2048})
    peer = nsq.dial()
    assert peer.ask(mpub(b"t#ephemeral", b"x" * 500, b"y" * 500)) == [OK]
    answer = peer.ask(mpub(b"t#ephemeral", *[b"z" * 500] * 8))
    assert answer == [(ERROR, b"E_MPUB_FAILED MPUB failed memory limit of the topic reached")]
    assert nsq.engine.log("t#ephemeral").message_count == 2
    assert nsq.dial().ask(mpub(b"t#ephemeral", b"x" * 500, b"y" * 500)) == [OK]


def test_a_deleted_topic_is_made_anew(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    assert peer.ask(pub(b"t", b"a")) == [OK]
    nsq.engine.delete_log("t")
    assert peer.ask(pub(b"t", b"b")) == [OK]
    assert nsq.engine.log("t").message_count == 1


def test_a_deleted_topic_among_others_is_made_anew(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    every = b"".join(pub(b"t%d" % i, b"a") for i in range(20))
    assert peer.ask(every) == [OK] * 20
    for i in range(0, 20, 2):
        nsq.engine.delete_log(f"t{i}")
    assert peer.ask(every + every) == [OK] * 40
    assert [nsq.engine.log(f"t{i}").message_count for i in range(4)] == [2, 3, 2, 3]
    (session,) = nsq.frontend.sessions
    assert session.count_published() == {f"t{i}": 3 for i in range(20)}


@pytest.mark.parametrize("slots", [4, 8, 1024])
def test_a_connection_publishes_to_more_topics_than_it_remembers(
    make_nsq: MakeNsq, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    monkeypatch.setattr(limits, "NSQ_PUBLISHED_SLOTS_MAX", slots)
    nsq = make_nsq()
    peer = nsq.dial()
    names = [b"%d" % (i * i) for i in range(60)] + [b"orders.%d.of.many" % i for i in range(60)]
    data = b"".join(pub(name, name) for name in names) + mpub(names[7], b"x", b"y")
    for times in range(1, 4):
        assert peer.ask(data) == [OK] * 121
        (session,) = nsq.frontend.sessions
        expected = {name.decode(): times for name in names} | {names[7].decode(): 3 * times}
        counted = session.count_published()
        assert counted == expected
        assert list(counted) == list(expected)
    for name in names:
        log = nsq.engine.log(name.decode())
        assert log.message_count == expected[log.name]
    peer.leave()
    nsq.loop.run()
    assert not nsq.frontend.sessions


def test_many_new_topics_are_made_in_several_turns(nsq: FakeNsq) -> None:
    peer, other = nsq.dial(), nsq.dial()
    names = [b"new%d" % number for number in range(100)]
    peer.read(b"".join(pub(name, name) for name in names) + b"NOP\n" + pub(names[3], b"again"))
    made = [len(nsq.engine.logs)]
    while made[-1] < len(names):
        assert not peer.transport.reading
        nsq.loop.run_once()
        made.append(len(nsq.engine.logs))
    steps = [after - before for before, after in zip([0, *made], made, strict=False)]
    assert max(steps) == limits.NSQ_CREATIONS
    assert other.ask(pub(b"new0", b"known")) == [OK]
    nsq.loop.run()
    assert peer.transport.reading
    assert peer.frames() == [OK] * 101
    assert nsq.engine.log("new3").message_count == 2
    assert nsq.engine.log("new0").message_count == 2


def test_connections_share_the_topics_of_a_turn(nsq: FakeNsq) -> None:
    peers = [nsq.dial() for _ in range(4)]
    for index, peer in enumerate(peers):
        peer.read(b"".join(pub(b"t%d-%d" % (index, n), b"x") for n in range(10)))
    assert len(nsq.engine.logs) == limits.NSQ_CREATIONS
    nsq.loop.run()
    assert [peer.frames() for peer in peers] == [[OK] * 10] * 4


def test_a_client_that_leaves_before_its_topics_are_made(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    peer.read(b"".join(pub(b"t%d" % number, b"x") for number in range(100)))
    peer.leave()
    nsq.loop.run()
    assert not nsq.frontend.sessions


def test_a_topic_that_is_not_shared_any_more_is_refused_to_those_who_published_to_it(
    make_nsq: MakeNsq,
) -> None:
    nsq = make_nsq(access=Access(nsq_to_stan=False))
    peer = nsq.dial()
    assert peer.ask(pub(b"t", b"a") + pub(b"u", b"b")) == [OK, OK]
    nsq.engine.open_log("t", protocol="stan")
    ((kind, text),) = peer.ask(pub(b"t", b"c"))
    assert (kind, text.split()[0]) == (ERROR, b"E_PUB_FAILED")
    assert nsq.engine.log("t").message_count == 1


def test_a_topic_deleted_under_an_unanswered_publish(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    peer.read(pub(b"t", b"a"))
    nsq.engine.delete_log("t")
    nsq.loop.run()
    ((kind, text),) = peer.frames()
    assert kind == ERROR
    assert text.startswith(b"E_PUB_FAILED PUB failed ")
    assert peer.closed


# --- consuming


def test_trap_7_touch_never_passes_the_longest_time(make_nsq: MakeNsq) -> None:
    nsq = make_nsq(max_msg_timeout_ns=4 * SECOND)
    assert nsq.dial().ask(pub(b"t", b"a")) == [OK]
    peer = nsq.consumer(b"t", 1, {"msg_timeout": 2000, "heartbeat_interval": 60000})
    (frame,) = peer.frames()
    for _ in range(3):
        nsq.loop.advance(SECOND)
        peer.send(b"TOUCH " + frame[1][10:26] + b"\n")
    assert peer.frames() == []
    nsq.loop.advance(SECOND)
    assert [shown(f) for f in peer.frames()] == [(1, 2, b"a")]


@pytest.mark.parametrize("requeue_on_close", [True, False])
def test_messages_of_a_closed_connection(make_nsq: MakeNsq, *, requeue_on_close: bool) -> None:
    nsq = make_nsq(requeue_on_close=requeue_on_close)
    assert nsq.dial().ask(pub(b"t", b"a")) == [OK]
    first = nsq.consumer(b"t", 1, {"msg_timeout": 5000})
    assert [shown(f) for f in first.frames()] == [(1, 1, b"a")]
    second = nsq.consumer(b"t", 1)
    first.leave()
    assert [shown(f) for f in second.frames()] == [(1, 2, b"a")] * requeue_on_close
    nsq.loop.advance(5 * SECOND)
    assert [shown(f) for f in second.frames()] == [(1, 2, b"a")] * (not requeue_on_close)


def test_delivery_follows_the_first_identify_and_touch_the_second(nsq: FakeNsq) -> None:
    assert nsq.dial().ask(pub(b"t", b"a")) == [OK]
    peer = nsq.dial({"msg_timeout": 2000})
    assert peer.ask(b"IDENTIFY\n" + sized(b'{"msg_timeout":5000}')) == [OK]
    assert peer.ask(b"SUB t c\n") == [OK]
    assert [shown(f)[:2] for f in peer.ask(b"RDY 1\n")] == [(1, 1)]
    nsq.loop.advance(2 * SECOND)
    assert [shown(f)[:2] for f in peer.frames()] == [(1, 2)]
    assert peer.ask(b"TOUCH %s\n" % message_id(1)) == []
    nsq.loop.advance(4 * SECOND)
    assert peer.frames() == []
    nsq.loop.advance(SECOND)
    assert [shown(f)[:2] for f in peer.frames()] == [(1, 3)]


@pytest.mark.parametrize(
    ("delay", "waits_s"),
    [(0, 0), (700, 0.7), (3_600_000, 3600), (9_999_999, 3600), (18_446_744_073_709_551_615, 0)],
)
def test_req_delays_are_clamped(nsq: FakeNsq, delay: int, waits_s: float) -> None:
    assert nsq.dial().ask(pub(b"t", b"a")) == [OK]
    peer = nsq.consumer(b"t", 1, {"heartbeat_interval": 1000})
    assert len(peer.frames()) == 1
    peer.send(b"RDY 0\nREQ %s %d\n" % (message_id(1), delay))
    cursor = nsq.engine.log("t").cursors["c"]
    assert cursor.deferred_count == (waits_s > 0)
    peer.leave()
    other = nsq.consumer(b"t", 1, {"heartbeat_interval": 60_000})
    if waits_s:
        assert other.frames() == []
        for _ in range(int(waits_s) // 60):
            nsq.loop.advance(60 * SECOND)
            other.send(b"NOP\n")
        nsq.loop.advance(SECOND)
    assert [shown(f) for f in other.frames() if f != HEARTBEAT] == [(1, 2, b"a")]


def test_too_many_consumers(make_nsq: MakeNsq) -> None:
    nsq = make_nsq(max_channel_consumers=1)
    nsq.consumer(b"t", 0)
    assert nsq.dial().ask(b"SUB t c\n") == [
        (ERROR, b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1")
    ]
    assert nsq.dial().ask(b"SUB t d\n") == [OK]


def test_ephemeral_channels_and_topics_go_with_their_consumers(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    assert peer.ask(b"SUB t#ephemeral c#ephemeral\n") == [OK]
    assert list(nsq.engine.log("t#ephemeral").cursors) == ["c#ephemeral"]
    peer.leave()
    assert nsq.engine.log("t#ephemeral") is None


def test_a_lasting_channel_of_an_ephemeral_topic_waits_for_its_consumers(nsq: FakeNsq) -> None:
    topic = b"t#ephemeral"
    nsq.consumer(topic, 1).leave()
    assert nsq.dial().ask(pub(topic, b"a")) == [OK]
    assert [shown(f) for f in nsq.consumer(topic, 1).frames()] == [(1, 1, b"a")]


# --- answers before deliveries


@pytest.mark.parametrize(("topics", "first"), [(1, True), (8, True), (9, False)])
def test_answers_leave_before_few_cursors_hand_out(
    make_nsq: MakeNsq, tmp_path: Path, topics: int, *, first: bool
) -> None:
    nsq = make_nsq(root=str(tmp_path))
    names = [b"t%d" % number for number in range(topics)]
    consumers = [nsq.consumer(name, 10) for name in names]
    peer = nsq.dial()
    cursors = [nsq.engine.logs[name.decode()].cursors["c"] for name in names]
    given = list[int]()

    def note(transport: FakeTransport) -> None:
        if transport is peer.transport:
            given.append(sum(cursor.in_flight_count for cursor in cursors))

    nsq.loop.on_write = note
    peer.read(b"".join(pub(name, b"a") for name in names))
    nsq.loop.run()
    assert given == [0 if first else topics]
    assert [len(consumer.frames()) for consumer in consumers] == [1] * topics


def test_a_consumer_that_publishes_is_answered_after_its_fin_is_journalled(
    make_nsq: MakeNsq, tmp_path: Path
) -> None:
    nsq = make_nsq(root=str(tmp_path))
    consumer = nsq.consumer(b"t", 1)
    assert nsq.dial().ask(pub(b"t", b"a")) == [OK]
    (journal,) = tmp_path.rglob("*.cur")
    before, sizes = journal.stat().st_size, list[int]()
    nsq.loop.on_write = lambda _: sizes.append(journal.stat().st_size)
    consumer.read(b"FIN %s\n" % message_id(1) + pub(b"u", b"b"))
    nsq.loop.run()
    assert consumer.frames()[-1] == OK
    assert sizes[0] > before


# --- a long backlog beside live traffic


def far_behind(
    make_nsq: MakeNsq, part: int, size: int, root: str | None = None
) -> tuple[FakeNsq, NsqPeer, NsqPeer]:
    """A consumer that was given first parts of what it is behind, and another connection."""
    nsq = make_nsq(engine={"deliver_bytes_max": 2 * part, "backlog_bytes_max": part}, root=root)
    behind, peer = nsq.consumer(b"t", 0), nsq.dial()
    assert len(peer.ask(pub(b"t", bytes(size)) * 300)) == 300
    behind.read(b"RDY 300\n")
    nsq.loop.run_once()
    nsq.loop.run_once()
    nsq.loop.turn.set_clock(nsq.loop.now_ns + SECOND, 0)
    return nsq, behind, peer


def test_answers_leave_before_a_part_of_a_long_backlog(make_nsq: MakeNsq) -> None:
    """One that fills a chunk of output, which is written at once."""
    nsq, behind, peer = far_behind(make_nsq, 2 * net_limits.CHUNK_LARGE, 10_000)
    written = list[FakeTransport]()
    nsq.loop.on_write = written.append
    peer.read(pub(b"u", b"a"))
    nsq.loop.run_once()
    assert written == [peer.transport, behind.transport, behind.transport]


def test_answers_leave_before_a_backlog_that_goes_on(make_nsq: MakeNsq) -> None:
    """As when the consumer has had no credit for a while."""
    nsq, behind, peer = far_behind(make_nsq, 2 * net_limits.CHUNK_LARGE, 10_000)
    behind.read(b"RDY 1\nFIN %s\n" % message_id(1))
    nsq.loop.run_once()
    behind.read(b"RDY 300\n")
    peer.read(pub(b"u", b"a"))
    written = list[FakeTransport]()
    nsq.loop.on_write = written.append
    nsq.loop.run_once()
    assert written == [peer.transport, behind.transport, behind.transport]


def test_a_fin_is_in_the_journal_before_a_later_answer_leaves(
    make_nsq: MakeNsq, tmp_path: Path
) -> None:
    nsq, behind, _ = far_behind(make_nsq, 8_000, 1_000, str(tmp_path))
    nsq.loop.run_once()
    (journal,) = tmp_path.rglob("*.cur")
    before, sizes = journal.stat().st_size, list[int]()
    nsq.loop.on_write = lambda _: sizes.append(journal.stat().st_size)
    behind.read(b"FIN %s\n" % message_id(1) + pub(b"u", b"a"))
    nsq.loop.run_once()
    assert sizes[0] > before


def test_a_long_backlog_comes_in_smaller_parts_beside_live_traffic(make_nsq: MakeNsq) -> None:
    nsq, behind, peer = far_behind(make_nsq, 8_000, 1_000)

    def part() -> int:
        behind.take()
        nsq.loop.run_once()
        return len(behind.take())

    whole, half = (pytest.approx(size, abs=1_100) for size in (8_000, 4_000))
    assert [part(), part()] == [whole, whole]
    peer.read(pub(b"u", b"a"))
    assert [part(), part(), part()] == [half, half, half]
    nsq.loop.turn.set_clock(nsq.loop.now_ns + 2 * SECOND, 0)
    assert part() == whole


# --- time


def test_heartbeats_and_silence(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    nsq.loop.advance(30 * SECOND - 1)
    assert peer.frames() == []
    nsq.loop.advance(1)
    assert peer.frames() == [HEARTBEAT]
    peer.send(b"NOP\n")
    nsq.loop.advance(60 * SECOND - 1)
    assert peer.frames() == [HEARTBEAT]
    assert not peer.closed
    nsq.loop.advance(1)
    assert peer.frames() == [HEARTBEAT]
    assert peer.closed


def test_no_heartbeats_before_the_magic(nsq: FakeNsq) -> None:
    peer = nsq.dial(greet=False)
    peer.send(b"  V")
    nsq.loop.advance(limits.NSQ_GREETING - 1)
    assert peer.take() == b""
    assert not peer.closed


@pytest.mark.parametrize("begun", [b"", b"  V"])
def test_who_does_not_begin_in_time_is_cut_off(nsq: FakeNsq, begun: bytes) -> None:
    peer = nsq.dial(greet=False)
    peer.send(begun)
    nsq.loop.advance(limits.NSQ_GREETING)
    assert peer.take() == b""
    assert peer.closed
    assert nsq.frontend.sessions == set()


def test_who_begins_in_time_stays(nsq: FakeNsq) -> None:
    peer = nsq.dial({"heartbeat_interval": -1})
    nsq.loop.advance(limits.NSQ_GREETING)
    assert not peer.closed
    assert peer.ask(pub(b"t", b"a")) == [OK]


def test_no_heartbeats_when_switched_off(nsq: FakeNsq) -> None:
    peer = nsq.dial({"heartbeat_interval": -1})
    nsq.loop.advance(300 * SECOND)
    assert peer.frames() == []
    assert peer.ask(pub(b"t", b"a")) == [OK]


@pytest.mark.parametrize(
    ("begun", "text"),
    [
        (b"NO", None),
        (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\0\0\0\5ab", b"E_BAD_MESSAGE PUB failed to read message body"),
        (b"IDENTIFY\n\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"AUTH\n\0\0\0\5x", b"E_BAD_BODY AUTH failed to read body"),
        (b"MPUB t\n\0\0\0\7", b"E_BAD_BODY MPUB failed to read message count"),
        (
            b"MPUB t\n" + struct.pack(">ii", 99, 2) + sized(b"a") + b"\0",
            b"E_BAD_MESSAGE MPUB failed to read message(1) body size",
        ),
        (
            b"MPUB t\n" + struct.pack(">ii", 99, 1) + b"\0\0\0\5a",
            b"E_BAD_MESSAGE MPUB failed to read message body",
        ),
    ],
)
def test_a_command_that_does_not_go_on(nsq: FakeNsq, begun: bytes, text: bytes | None) -> None:
    expected = [] if text is None else [(ERROR, text)]
    for cuts in ([], list(range(len(begun)))):
        peer = nsq.dial({"heartbeat_interval": 1000})
        peer.send(begun[:1])
        nsq.loop.advance(SECOND)
        peer.send(begun[1:], cuts)  # half a command is no sign of life
        nsq.loop.advance(SECOND)
        assert peer.frames() == [HEARTBEAT, HEARTBEAT, *expected]
        assert peer.closed
    peer = nsq.dial()
    peer.send(begun)
    peer.end_input()
    assert peer.frames() == expected
    assert peer.closed


# --- endings


def test_a_half_closed_client_gets_its_answers(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    peer.read(pub(b"t", b"a") * 3 + b"PUB t\n\0\0\0\1")
    peer.end_input()
    assert peer.frames() == [
        OK,
        OK,
        OK,
        (ERROR, b"E_BAD_MESSAGE PUB failed to read message body"),
    ]
    assert peer.closed


def test_drain_answers_what_was_published(nsq: FakeNsq) -> None:
    publisher, idle, bare = nsq.dial(), nsq.dial(), nsq.dial(greet=False)
    publisher.read(pub(b"t", b"a") * 3)
    for session in list(nsq.frontend.sessions):
        session.drain()
    publisher.read(pub(b"t", b"too late"))
    nsq.loop.run()
    assert publisher.frames() == [OK] * 3
    assert (publisher.closed, idle.closed, bare.closed) == (True, True, True)
    assert nsq.engine.log("t").message_count == 3
    assert not nsq.frontend.sessions


def test_a_session_leaves_nothing_behind(nsq: FakeNsq) -> None:
    peer = nsq.consumer(b"t", 5)
    peer.read(pub(b"t", b"a"))
    peer.leave()
    nsq.loop.run()
    assert not nsq.frontend.sessions
    assert nsq.engine.log("t").cursors["c"].consumers == 0
    nsq.loop.advance(300 * SECOND)


def test_what_monitoring_sees(nsq: FakeNsq) -> None:
    peer = nsq.consumer(b"t", 3)
    peer.send(pub(b"t", b"abc") + mpub(b"u", b"d", b"e") + pub(b"t", b"f"))
    peer.send(b"FIN %s\nREQ %s 0\n" % (message_id(1), message_id(2)))
    (session,) = nsq.frontend.sessions
    assert session.numbers() == (3, 3, 1, 3, 1, 1)
    assert session.count_published() == {"t": 2, "u": 2}
    assert session.remote_address == "192.0.2.7:40000"
    assert (session.identity.client_id, session.identity.hostname) == ("192.0.2.7", "192.0.2.7")
    assert (nsq.frontend.in_msgs, nsq.frontend.in_bytes) == (4, 6)
    assert (nsq.frontend.out_msgs, nsq.frontend.out_bytes) == (3, 5)
