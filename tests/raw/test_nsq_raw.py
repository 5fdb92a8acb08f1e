"""NSQ traps that need counting, statistics or a clock that the transcript cannot give."""

from __future__ import annotations

import json
import struct
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from support import Frame, RawPeer, Server, nsq_peer
from support.clients.http import nsq_channel, nsq_topic, request
from support.clients.peer import sized

if TYPE_CHECKING:
    from conftest import BrokerFor, StartBroker

HEARTBEAT = Frame("response", b"_heartbeat_")
QUICK = {"heartbeat_interval": 1000}
SAMPLED = 2000


def _publish(server: Server, topic: str, *bodies: bytes) -> None:
    with nsq_peer(server.nsq) as peer:
        content = struct.pack(">i", len(bodies)) + b"".join(sized(body) for body in bodies)
        peer.command(f"MPUB {topic}", content)
        peer.expect_frame("response", b"OK")


def _subscribe(
    server: Server, topic: str, channel: str = "ch", rdy: int = 1, **identify: object
) -> RawPeer:
    peer = nsq_peer(server.nsq, identify or None)
    peer.deadline_s = 20
    peer.command(f"SUB {topic} {channel}")
    peer.expect_frame("response", b"OK")
    peer.command(f"RDY {rdy}")
    return peer


def _next_message(peer: RawPeer) -> Frame:
    """The next message; heartbeats on the way are answered."""
    while (frame := peer.read_frame()) == HEARTBEAT:
        peer.command("NOP")
    assert frame.kind == "message", frame
    return frame


def _frames(data: bytes) -> list[Frame]:
    frames: list[Frame] = []
    while data:
        size, kind = struct.unpack_from(">ii", data)
        frames.append(Frame(("response", "error", "message")[kind], data[8 : size + 4]))
        data = data[size + 4 :]
    return frames


def test_trap_07_touch_ends_at_the_longest_timeout(broker_for: BrokerFor, uniq: str) -> None:
    """However often it is touched, the message comes again in the end."""
    server = broker_for({"nsq": {"max_msg_timeout": "2s", "msg_timeout": "1500ms"}})
    _publish(server, uniq, b"hello")
    started = time.monotonic()
    with _subscribe(server, uniq, msg_timeout=1500, heartbeat_interval=1000) as peer:
        first = _next_message(peer)
        while (frame := peer.read_frame()).kind != "message":
            # the error: a loaded machine was late, and the message's time was up before
            assert frame == HEARTBEAT or frame.payload.startswith(b"E_TOUCH_FAILED")
            peer.command(f"TOUCH {first.message_id.decode()}")
            assert time.monotonic() - started < 15
        assert (frame.message_id, frame.attempts) == (first.message_id, 2)
        assert time.monotonic() - started > 1.9


def test_touch_prolongs(broker: Server, uniq: str) -> None:
    """Touched at every heartbeat, a message with a timeout of 2.5 s stays for longer."""
    _publish(broker, uniq, b"hello")
    with _subscribe(broker, uniq, msg_timeout=2500, heartbeat_interval=1000) as peer:
        message = _next_message(peer)
        for _ in range(3):
            assert peer.read_frame() == HEARTBEAT
            peer.command(f"TOUCH {message.message_id.decode()}")
        peer.command(f"FIN {message.message_id.decode()}")
        assert peer.read_frame() == HEARTBEAT
        peer.command("NOP")
    channel = nsq_channel(broker.nsq_http, uniq, "ch")
    assert (channel["timeout_count"], channel["in_flight_count"], channel["depth"]) == (0, 0, 0)


def test_trap_12_silence_ends_without_an_error(broker: Server) -> None:
    started = time.monotonic()
    with nsq_peer(broker.nsq, QUICK) as peer:
        frames = _frames(peer.read_to_eof())
        assert time.monotonic() - started > 1.9
    assert frames in ([HEARTBEAT], [HEARTBEAT] * 2)


def test_trap_12_half_a_command_is_no_life_sign(broker: Server) -> None:
    """A byte of a command at every heartbeat does not keep the connection."""
    started = time.monotonic()
    with nsq_peer(broker.nsq, QUICK) as peer:
        heartbeats = 0
        while not peer.closed and heartbeats < 6:
            peer.receive(peer.deadline_s)
            frames = _frames(bytes(peer.pending))
            peer.pending.clear()
            assert set(frames) <= {HEARTBEAT}
            heartbeats += len(frames)
            peer.send(b"N")
        assert heartbeats in (1, 2)
        assert time.monotonic() - started > 1.9


def test_a_body_that_stalls_is_answered_then_closed(broker: Server, uniq: str) -> None:
    with nsq_peer(broker.nsq, QUICK) as peer:
        started = time.monotonic()
        peer.send(f"PUB {uniq}\n".encode() + struct.pack(">i", 10) + b"half")
        frames = _frames(peer.read_to_eof())
        assert time.monotonic() - started > 1.9
    errors = [frame for frame in frames if frame != HEARTBEAT]
    assert errors == [Frame("error", b"E_BAD_MESSAGE PUB failed to read message body")]


def test_without_heartbeats_silence_is_fine(broker: Server, uniq: str) -> None:
    """Another connection's two intervals pass without a word on this one."""
    quiet = nsq_peer(broker.nsq, {"heartbeat_interval": -1})
    with quiet, nsq_peer(broker.nsq, QUICK) as clock:
        clock.read_to_eof()
        quiet.command(f"PUB {uniq}", b"hi")
        quiet.expect_frame("response", b"OK")


@pytest.mark.parametrize(("rate", "low", "high"), [(49, 800, 1200), (9, 110, 300)])
def test_trap_14_sampling_passes_one_percent_more_and_drops_the_rest(
    broker: Server, uniq: str, rate: int, low: int, high: int
) -> None:
    _publish(broker, uniq, *[b"%d" % number for number in range(SAMPLED)])
    with _subscribe(broker, uniq, rdy=2500, sample_rate=rate) as peer:
        _publish(broker, uniq, *[b"end"] * 400)  # so many that one of them passes
        bodies: list[bytes] = []
        while (message := _next_message(peer)).body != b"end":
            bodies.append(message.body)
            peer.command(f"FIN {message.message_id.decode()}")
    assert low < len(bodies) < high
    assert all(int(a) < int(b) for a, b in pairwise(bodies))


def test_trap_14_what_is_not_sampled_is_gone(broker: Server, uniq: str) -> None:
    """Dropped messages are neither in flight nor left for the next consumer."""
    _publish(broker, uniq, *[b"x"] * SAMPLED)
    with _subscribe(broker, uniq, rdy=5, sample_rate=1) as peer:
        for _ in range(5):
            _next_message(peer)
        channel = nsq_channel(broker.nsq_http, uniq, "ch")
        assert channel["in_flight_count"] == 5
        assert channel["depth"] < SAMPLED - 5


def test_trap_18_ids_are_unique_in_a_topic(broker: Server, uniq: str) -> None:
    _publish(broker, uniq, *[b"%d" % number for number in range(1000)])
    with _subscribe(broker, uniq, rdy=2500) as peer:
        messages = [_next_message(peer) for _ in range(1000)]
    assert [int(m.body) for m in messages] == list(range(1000))
    assert len({m.message_id for m in messages}) == 1000
    assert all(a.timestamp_ns <= b.timestamp_ns for a, b in pairwise(messages))
    assert abs(messages[0].timestamp_ns - time.time_ns()) < 60 * 10**9


def test_trap_13_identify_without_names_blanks_them(broker: Server, uniq: str) -> None:
    with nsq_peer(broker.nsq) as plain:
        plain.command(f"SUB {uniq} a")
        plain.expect_frame("response", b"OK")
        with (
            _subscribe(broker, uniq, "b", client_id=None),
            _subscribe(broker, uniq, "c", client_id="me", hostname="here", user_agent="test/1"),
        ):
            clients = {
                name: nsq_channel(broker.nsq_http, uniq, name)["clients"][0] for name in "abc"
            }
    names = {k: (v["client_id"], v["hostname"], v["user_agent"]) for k, v in clients.items()}
    assert names == {
        "a": ("127.0.0.1", "127.0.0.1", ""),
        "b": ("", "", ""),
        "c": ("me", "here", "test/1"),
    }


def test_trap_29_what_the_counters_count(broker: Server, uniq: str) -> None:
    """Requeues and timeouts have counters of their own; message_count knows neither."""
    _publish(broker, uniq, b"hello")
    with _subscribe(broker, uniq, msg_timeout=1000) as peer:
        message = _next_message(peer)
        peer.command(f"REQ {message.message_id.decode()} 0")
        assert _next_message(peer).attempts == 2
        assert _next_message(peer).attempts == 3  # the timeout
        channel = nsq_channel(broker.nsq_http, uniq, "ch")
    counts = {k: channel[k] for k in ("message_count", "requeue_count", "timeout_count")}
    assert counts == {"message_count": 1, "requeue_count": 1, "timeout_count": 1}
    assert nsq_topic(broker.nsq_http, uniq)["message_count"] == 1


def test_trap_10_which_failures_make_a_topic(broker: Server, uniq: str) -> None:
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"PUB {uniq}.pub", b"")
        assert peer.read_frame().kind == "error"
    with nsq_peer(broker.nsq) as peer:
        peer.send(f"MPUB {uniq}.mpub\n".encode() + struct.pack(">i", 0))
        assert peer.read_frame().kind == "error"
    answer = request(broker.nsq_http, "POST", "/pub", b"x", topic=f"{uniq}.http", defer="soon")
    assert (answer.status, answer.json) == (400, {"message": "INVALID_DEFER"})
    made = {
        name for name in ("pub", "mpub", "http") if nsq_topic(broker.nsq_http, f"{uniq}.{name}")
    }
    assert made == {"mpub", "http"}


def test_trap_30_a_name_ends_where_it_ends(broker: Server, uniq: str) -> None:
    answer = request(broker.nsq_http, "POST", "/pub", b"x", topic=f"{uniq}\n")
    assert (answer.status, answer.json) == (400, {"message": "INVALID_TOPIC"})


def test_trap_17_a_delay_is_never_cut_short(broker: Server, uniq: str) -> None:
    """No channel at the time of DPUB: the message waits at least its delay from then."""
    with nsq_peer(broker.nsq) as publisher:
        published = time.monotonic()
        publisher.command(f"DPUB {uniq} 1200", b"later")
        publisher.expect_frame("response", b"OK")
    with _subscribe(broker, uniq) as peer:
        assert _next_message(peer).body == b"later"
        assert time.monotonic() - published > 1.19


@pytest.mark.only_ours
def test_trap_03_a_dead_consumers_messages_come_back_at_once(broker: Server, uniq: str) -> None:
    """The default: nobody waits a minute for a consumer that is known to be gone."""
    _publish(broker, uniq, b"hello")
    with _subscribe(broker, uniq) as peer:
        first = _next_message(peer)
    with _subscribe(broker, uniq) as peer:
        second = _next_message(peer)
    assert (second.message_id, second.attempts) == (first.message_id, 2)


def test_a_backlog_survives_a_clean_restart(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker()
    _publish(server, uniq, *[b"%d" % number for number in range(100)])
    with _subscribe(server, uniq) as peer:
        message = _next_message(peer)
        peer.command(f"FIN {message.message_id.decode()}")
        second = _next_message(peer)
    server.restart()
    with _subscribe(server, uniq, rdy=2500) as peer:
        left = [_next_message(peer) for _ in range(99)]
    assert {m.body for m in left} == {b"%d" % number for number in range(100)} - {message.body}
    again = next(m for m in left if m.message_id == second.message_id)
    assert again.attempts == 2


@pytest.mark.only_ours
def test_what_was_confirmed_survives_a_kill(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker()
    with nsq_peer(server.nsq) as peer:
        for number in range(50):
            peer.command(f"PUB {uniq}", b"%d" % number)
        for _ in range(50):
            peer.expect_frame("response", b"OK")
        server.kill()
    server.restart()
    with _subscribe(server, uniq, rdy=2500) as peer:
        assert [int(_next_message(peer).body) for _ in range(50)] == list(range(50))


def test_identify_is_shown_in_stats(broker: Server, uniq: str) -> None:
    with _subscribe(broker, uniq, rdy=7, client_id="me", sample_rate=5):
        client = nsq_channel(broker.nsq_http, uniq, "ch")["clients"][0]
    assert (client["state"], client["ready_count"], client["sample_rate"]) == (3, 7, 5)
    assert (client["version"], client["tls"], client["snappy"]) == ("V2", False, False)
    assert json.dumps(client["remote_address"]).startswith('"127.0.0.1:')
