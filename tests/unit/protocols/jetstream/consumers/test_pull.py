"""Pull consumers: who gets which message, how requests end, and when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.consumers import Bench
from support.engine import SECOND, Rig


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Rig(None, clock=(SECOND, SECOND)) as rig:
        yield Bench(rig)


def bodies(count: int) -> list[bytes]:
    return [b"m%d" % i for i in range(count)]


# --- deliveries ----------------------------------------------------------------------------------


def test_a_batch_is_delivered_and_ends_silently(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit")
    bench.publish(*bodies(5))
    bench.inbox("in")
    bench.ask("in", batch=3)
    found = bench.raw("in")
    assert [message.data for message in found] == bodies(3)
    start = b"$JS.ACK.S.C.1.1.1."
    assert found[0].reply.startswith(start)
    assert found[0].reply.endswith(b".4")
    assert found[2].reply.split(b".")[4:7] == [b"1", b"3", b"3"]
    assert (consumer.num_waiting, consumer.info().num_pending) == (0, 2)


def test_a_request_waits_for_messages(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit")
    bench.inbox("in")
    bench.ask("in", batch=2)
    assert consumer.num_waiting == 1
    bench.publish(b"a")
    bench.publish(b"b", b"c")
    assert bench.got("in") == ["a", "b"]
    assert consumer.num_waiting == 0


@pytest.mark.parametrize(
    ("body", "count"), [(b"", 1), (b"3", 3), (b"hello", 1), (b"[]", 1), (b"0", 1), (b"-1", 1)]
)
def test_bodies_that_are_no_json(bench: Bench, body: bytes, count: int) -> None:
    bench.consumer(ack_policy="explicit")
    bench.publish(*bodies(5))
    bench.inbox("in")
    bench.send("in", body)
    assert len(bench.got("in")) == count


def test_requests_share_messages_in_turn(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit")
    bench.inbox("one")
    bench.inbox("two")
    bench.ask("one", batch=3)
    bench.ask("two", batch=3)
    bench.publish(*bodies(6))
    assert bench.got("one") == ["m0", "m2", "m4"]
    assert bench.got("two") == ["m1", "m3", "m5"]


def test_requests_share_what_is_stored_already(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit")
    bench.publish(*bodies(6))
    bench.inbox("one")
    bench.inbox("two")
    bench.ask("one", batch=3, settle=False)
    bench.ask("two", batch=3)
    assert bench.got("one") == ["m0", "m2", "m4"]
    assert bench.got("two") == ["m1", "m3", "m5"]


def test_max_ack_pending_holds_back_new_messages(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit", max_ack_pending=2)
    bench.publish(*bodies(4))
    bench.inbox("in")
    bench.ask("in", batch=10)
    first, second = bench.raw("in")
    bench.ack(second)
    bench.ack(first)
    assert bench.got("in") == ["m2", "m3"]


def test_headers_only(bench: Bench) -> None:
    bench.consumer(headers_only=True)
    bench.publish(b"body", headers=b"NATS/1.0\r\nH: v\r\n\r\n")
    bench.publish(b"")
    bench.inbox("in")
    bench.ask("in", batch=2)
    with_headers, empty = bench.raw("in")
    assert (with_headers.headers, with_headers.data) == (
        b"NATS/1.0\r\nH: v\r\nNats-Msg-Size: 4\r\n\r\n",
        b"",
    )
    assert empty.headers == b"NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n"


# --- ends of requests ----------------------------------------------------------------------------


def test_no_wait(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit")
    bench.inbox("in")
    bench.ask("in", batch=2, no_wait=True)
    assert bench.got("in") == ["404 No Messages"]
    bench.publish(*bodies(5))
    bench.ask("in", batch=2, no_wait=True)
    assert bench.got("in") == ["m0", "m1"]
    bench.ask("in", batch=10, no_wait=True)
    assert bench.got("in") == ["m2", "m3", "m4", "404 No Messages"]


def test_no_wait_that_may_wait_for_the_first_message(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit")
    bench.inbox("in")
    bench.ask("in", batch=3, no_wait=True, expires=2)
    assert bench.got("in") == []
    bench.publish(b"a")
    assert bench.got("in") == ["a", "404 No Messages"]
    bench.ask("in", batch=3, no_wait=True, expires=2)
    bench.rig.advance(2)
    assert bench.got("in") == [
        "408 Request Timeout | Nats-Pending-Messages: 3 | Nats-Pending-Bytes: 0"
    ]


def test_no_wait_goes_on_with_acks(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit", max_ack_pending=1)
    bench.publish(*bodies(5))
    bench.inbox("in")
    bench.ask("in", batch=10, no_wait=True)
    for number in range(4):
        message = bench.raw("in")[0]
        assert message.data == b"m%d" % number
        bench.ack(message)
    assert bench.got("in") == ["m4", "404 No Messages"]


def test_no_wait_waits_a_moment_for_an_ack(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit", max_ack_pending=2)
    bench.publish(*bodies(5))
    bench.inbox("in")
    bench.ask("in", batch=10, no_wait=True)
    first, _ = bench.raw("in")
    bench.rig.advance(0.9)
    bench.ack(first)
    assert bench.got("in") == ["m2"]
    bench.rig.advance(0.9)
    assert bench.got("in") == []
    bench.rig.advance(0.1)
    assert bench.got("in") == ["404 No Messages"]
    bench.ask("in", batch=10, no_wait=True)  # one that comes when nothing may be sent
    assert (bench.got("in"), consumer.num_waiting) == ([], 1)
    bench.rig.advance(1)
    assert (bench.got("in"), consumer.num_waiting) == (["404 No Messages"], 0)


def test_no_wait_with_a_time_waits_so_long_for_acks(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit", max_ack_pending=2)
    bench.publish(*bodies(5))
    bench.inbox("in")
    bench.ask("in", batch=4, no_wait=True, expires=3)
    assert bench.got("in") == ["m0", "m1"]
    bench.rig.advance(2.9)
    assert bench.got("in") == []
    bench.rig.advance(0.1)
    assert bench.got("in") == [
        "408 Request Timeout | Nats-Pending-Messages: 2 | Nats-Pending-Bytes: 0"
    ]


def test_no_wait_with_heartbeats_waits_for_acks_until_the_first_one(bench: Bench) -> None:
    """Else a client that acks when it has all messages gets more of them after its request."""
    bench.consumer(ack_policy="explicit", max_ack_pending=2)
    bench.publish(*bodies(5))
    bench.inbox("in")
    bench.ask("in", batch=4, no_wait=True, expires=3, idle_heartbeat=1)
    assert bench.got("in") == ["m0", "m1"]
    bench.rig.advance(1)
    assert bench.got("in") == ["404 No Messages"]


def test_no_wait_ends_when_all_is_sent(bench: Bench) -> None:
    """Though no further message might be sent before an ack."""
    bench.consumer(ack_policy="explicit", max_ack_pending=2)
    bench.publish(*bodies(2))
    bench.inbox("in")
    bench.ask("in", batch=3, no_wait=True)
    assert bench.got("in") == ["m0", "m1", "404 No Messages"]


def test_no_wait_sees_redeliveries(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit")
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in")
    (message,) = bench.raw("in")
    bench.ack(message, b"-NAK")
    bench.ask("in", no_wait=True)
    assert bench.got("in") == ["a"]


def test_requests_expire(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit")
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in", batch=5, expires=0.2)
    bench.rig.advance(0.19)
    assert bench.got("in") == ["a"]
    bench.rig.advance(0.01)
    assert bench.got("in") == [
        "408 Request Timeout | Nats-Pending-Messages: 4 | Nats-Pending-Bytes: 0"
    ]


def test_a_negative_expiry_has_passed(bench: Bench) -> None:
    bench.consumer()
    bench.inbox("in")
    bench.ask("in", expires=-1)
    bench.ask("in", batch=2, expires=-1)
    assert bench.got("in") == [  # as nats-server: 0 without a batch
        "408 Request Timeout | Nats-Pending-Messages: 0 | Nats-Pending-Bytes: 0",
        "408 Request Timeout | Nats-Pending-Messages: 2 | Nats-Pending-Bytes: 0",
    ]


def test_heartbeats(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit")
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in", batch=5, expires=0.9, idle_heartbeat=0.1)
    assert bench.got("in") == ["a"]
    bench.rig.advance(0.35)
    beat = "100 Idle Heartbeat | Nats-Last-Consumer: 1 | Nats-Last-Stream: 1"
    assert bench.got("in") == [beat] * 3
    bench.publish(b"b")
    assert bench.got("in") == ["b"]
    bench.rig.advance(0.09)
    assert bench.got("in") == []  # it was spoken to
    bench.rig.advance(0.01)
    assert bench.got("in") == [beat.replace("1 |", "2 |").replace("Stream: 1", "Stream: 2")]


def test_max_bytes(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit", max_ack_pending=-1)
    bench.publish(b"x", b"y")
    bench.inbox("in")
    bench.ask("in", batch=2, max_bytes=1000, expires=1)
    first, second, status = bench.raw("in")
    size = sum(len("S") + len(m.reply) + len(m.data) for m in (first, second))
    assert status.headers.decode() == (
        "NATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: 0\r\n"
        f"Nats-Pending-Bytes: {1000 - size}\r\n\r\n"
    )
    bench.publish(b"z")
    bench.ask("in", batch=3, max_bytes=10, no_wait=True)
    assert bench.got("in") == [
        "409 Message Size Exceeds MaxBytes | Nats-Pending-Messages: 3 | Nats-Pending-Bytes: 10"
    ]
    bench.ask("in", no_wait=True)
    assert bench.got("in") == ["z"]


def test_caps(bench: Bench) -> None:
    bench.consumer(
        ack_policy="explicit", max_waiting=1, max_batch=2, max_expires=1500 * 10**6, max_bytes=100
    )
    bench.inbox("in")
    bench.ask("in", batch=3)
    bench.ask("in", expires=2)
    bench.ask("in", max_bytes=200)
    assert bench.got("in") == [
        "409 Exceeded MaxRequestBatch of 2",
        "409 Exceeded MaxRequestExpires of 1.5s",
        "409 Exceeded MaxRequestMaxBytes of 100",
    ]
    bench.ask("in", expires=1)
    bench.ask("in", expires=1)
    assert bench.got("in") == ["409 Exceeded MaxWaiting"]
    bench.ask("in", expires=1, idle_heartbeat=0.1)
    assert bench.got("in") == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            b"{bad",
            "Bad Request - invalid character 'b' looking for beginning of object key string",
        ),
        (b"{", "Bad Request - unexpected end of JSON input"),
        (
            b'{"expires":200000000,"idle_heartbeat":150000000}',
            "Bad Request - heartbeat value too large",
        ),
        (b'{"idle_heartbeat":150000000}', "Bad Request - heartbeat value too large"),
        (b'{"min_pending":5}', "Bad Request - Not a Overflow Priority consumer"),
        (b'{"id":"x"}', "Bad Request - Not a Pinned Client Priority consumer"),
        (b'{"priority":10}', "Bad Request - Priority must be between 0 and 9"),
    ],
)
def test_bad_requests(bench: Bench, body: bytes, text: str) -> None:
    bench.consumer()
    bench.inbox("in")
    bench.send("in", body)
    assert bench.got("in") == [f"400 {text}"]


def test_a_required_level(bench: Bench) -> None:
    bench.consumer()
    bench.inbox("in")
    bench.account.publish(
        b"$JS.API.CONSUMER.MSG.NEXT.S.C",
        b"",
        b"in",
        b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n",
    )
    bench.rig.settle()
    assert bench.got("in") == ["412 Required Api Level"]


def test_a_deleted_consumer_ends_requests(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.inbox("in")
    bench.ask("in", batch=4, expires=5)
    consumer.close("409 Consumer Deleted")
    bench.rig.settle()
    assert bench.got("in") == ["409 Consumer Deleted"]
    assert bench.send("in", b"") == 0  # no responders


def test_the_end_of_the_server(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.inbox("in")
    bench.ask("in", batch=4, expires=5)
    consumer.close("409 Server Shutdown", True)
    bench.rig.settle()
    assert bench.got("in") == [
        "409 Server Shutdown | Nats-Pending-Messages: 4 | Nats-Pending-Bytes: 0"
    ]


def test_requests_of_vanished_inboxes_lose_nothing(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit", max_waiting=2)
    gone = bench.inbox("gone")
    bench.ask("gone", batch=5)
    bench.ask("gone", batch=5)
    gone.close()
    assert consumer.num_waiting == 0
    bench.inbox("in")
    bench.ask("in", batch=2)
    bench.publish(b"a", b"b")
    assert bench.got("in") == ["a", "b"]
    assert consumer.info().delivered.consumer_seq == 2


def test_a_client_that_reconnects_finds_its_request(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit")
    box = bench.inbox("in")
    bench.ask("in", batch=3)
    bench.publish(b"a")
    (message,) = bench.raw("in")
    box.close()
    bench.ack(message)  # gives it an occasion to look
    bench.rig.advance(60)
    assert consumer.num_waiting == 0
    box = bench.inbox("in")
    assert consumer.num_waiting == 1
    bench.publish(b"b")
    assert bench.got("in") == ["b"]
    box.close()
    bench.publish(b"c")  # with nobody there it ends
    bench.inbox("in")
    bench.publish(b"d")
    assert bench.got("in") == []


# --- acks ----------------------------------------------------------------------------------------


def test_confirmations(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit")
    bench.publish(*bodies(4))
    bench.inbox("in")
    bench.inbox("ok")
    bench.ask("in", batch=3)
    one, two, three = bench.raw("in")
    for message, body in ((one, b""), (one, b"+ACK"), (two, b"+WPI"), (two, b"junk"), (three, b"")):
        bench.ack(message, body, "ok")
    assert bench.got("ok") == [""] * 5
    future = one.reply.replace(b".1.1.1.", b".1.4.4.")
    bench.account.publish(future, b"", b"ok")
    bench.rig.settle()
    assert bench.got("ok") == []  # not delivered yet
    assert consumer.info().ack_floor.stream_seq == 1


@pytest.mark.parametrize(
    "subject",
    ["$JS.ACK.S.NOPE.1.1.1.1.0", "$JS.ACK.S.C.1.1", "$JS.ACK.S.C.1.1.1.1.0.0"],
)
def test_acks_that_nobody_takes(bench: Bench, subject: str) -> None:
    bench.consumer(ack_policy="explicit")
    assert bench.account.publish(subject.encode(), b"") == 0


def test_consumers_without_acks_take_none(bench: Bench) -> None:
    bench.consumer(ack_policy="none")
    assert bench.account.publish(b"$JS.ACK.S.C.1.1.1.1.0", b"") == 0


def test_the_second_form_of_ack_subjects(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit")
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in")
    (message,) = bench.raw("in")
    numbers = message.reply.split(b".", 4)[4]
    assert bench.account.publish(b"$JS.ACK._.AbCdEfGh.S.C." + numbers + b".more", b"")
    assert consumer.info().num_ack_pending == 0


def test_next_is_an_ack_and_a_request(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit")
    bench.publish(*bodies(4))
    bench.inbox("in")
    bench.ask("in")
    (message,) = bench.raw("in")
    bench.ack(message, b"+NXT", "in")
    (message,) = bench.raw("in")
    assert message.data == b"m1"
    bench.ack(message, b'+NXT {"batch":5,"no_wait":true}', "in")
    assert bench.got("in") == ["m2", "m3", "404 No Messages"]


def test_naks(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit", ack_wait=30 * SECOND)
    bench.publish(*bodies(3))
    bench.inbox("in")
    bench.ask("in", batch=3)
    one, two, three = bench.raw("in")
    bench.ack(three, b"-NAK")
    bench.ack(one, b"-NAK nonsense")
    bench.ack(two, b'-NAK {"delay": 1000000000}')
    bench.ask("in", batch=3)
    assert bench.got("in") == ["m2", "m0"]
    bench.rig.advance(1)
    (again,) = bench.raw("in")
    assert again.reply.split(b".")[4:7] == [b"2", b"2", b"6"]
    assert consumer.info().num_redelivered == 3
    assert [kind for kind, _ in bench.registry.reports] == ["nak"] * 3


def test_term(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit")
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in")
    (message,) = bench.raw("in")
    bench.ack(message, b"+TERM because")
    assert consumer.info().num_ack_pending == 0
    assert bench.registry.reports == [
        (
            "terminated",
            {"consumer_seq": 1, "stream_seq": 1, "deliveries": 1, "reason": "because"},
        )
    ]


def test_the_last_delivery_is_reported_once(bench: Bench) -> None:
    consumer = bench.consumer(ack_policy="explicit", ack_wait=SECOND, max_deliver=2)
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in", batch=10)
    bench.rig.advance(5)
    assert bench.got("in") == ["a", "a"]
    assert bench.registry.reports == [("max_deliver", {"stream_seq": 1, "deliveries": 2})]
    assert consumer.info().num_ack_pending == 0


def test_acks_are_sampled(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit", sample_freq="100%")
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in")
    bench.rig.advance(0.5)
    (message,) = bench.raw("in")
    bench.ack(message)
    bench.ack(message)
    assert bench.registry.reports == [
        (
            "consumer_ack",
            {"consumer_seq": 1, "stream_seq": 1, "ack_time": SECOND // 2, "deliveries": 1},
        )
    ]


def test_a_delivery_is_no_ack(bench: Bench) -> None:
    """A client may name the ack subject of a message as its inbox."""
    consumer = bench.consumer(ack_policy="explicit", ack_wait=SECOND)
    bench.publish(b"")
    bench.inbox("in")
    bench.ask("in")
    (message,) = bench.raw("in")
    bench.rig.advance(1)
    bench.ask(message.reply.decode())
    info = consumer.info()
    assert (info.delivered.consumer_seq, info.num_ack_pending) == (2, 1)
    bench.ack(message)
    assert consumer.info().num_ack_pending == 0


# --- life ----------------------------------------------------------------------------------------


def test_an_unused_consumer_is_deleted(bench: Bench) -> None:
    bench.consumer(inactive_threshold=5 * SECOND)
    bench.rig.advance(4.9)
    assert bench.registry.deleted == []
    bench.rig.advance(0.1)
    assert bench.registry.deleted == ["C"]


def test_a_waiting_request_keeps_a_consumer(bench: Bench) -> None:
    bench.consumer(inactive_threshold=5 * SECOND)
    bench.inbox("in")
    bench.ask("in", expires=20)
    bench.rig.advance(24.9)
    assert bench.registry.deleted == []
    bench.rig.advance(10)
    assert bench.registry.deleted == ["C"]


def test_messages_that_may_still_be_acked_keep_a_consumer(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit", ack_wait=30 * SECOND, inactive_threshold=5 * SECOND)
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in")
    bench.rig.advance(29)
    assert bench.registry.deleted == []
    bench.rig.advance(20)
    assert bench.registry.deleted == ["C"]


# --- priorities ----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 3)) | st.integers(1, 8).map(lambda n: (-n, 0)),
    max_size=40,
))  # fmt: skip
def test_priorities_against_a_sorted_list(steps: list[tuple[int, int]]) -> None:
    """Of the requests with the lowest number the one that has waited longest is served."""
    with Rig(None, clock=(SECOND, SECOND)) as rig:
        bench = Bench(rig)
        consumer = bench.consumer(priority_policy="prioritized", priority_groups=["g"])
        waiting: list[tuple[int, int, str, int]] = []  # priority, since, inbox, messages to come
        expected: dict[str, int] = {}
        for since, (priority, batch) in enumerate(steps):
            if priority >= 0:
                inbox = f"in{since}"
                bench.inbox(inbox)
                bench.ask(inbox, batch=batch, group="g", priority=priority)
                waiting.append((priority, since * 100, inbox, batch))
                expected[inbox] = 0
                continue
            count = min(-priority, sum(each[3] for each in waiting))
            bench.publish(*bodies(count))
            for number in range(count):
                level, _, inbox, left = first = min(waiting)
                waiting.remove(first)
                expected[inbox] += 1
                if left > 1:
                    waiting.append((level, since * 100 + number, inbox, left - 1))
            assert {inbox: len(bench.boxes[inbox]) for inbox in expected} == expected
            assert consumer.num_waiting == len(waiting)


# --- priority groups -----------------------------------------------------------------------------

OVERFLOW = {"priority_policy": "overflow", "priority_groups": ["A", "B"]}
PINNED = {
    "priority_policy": "pinned_client",
    "priority_groups": ["g"],
    "priority_timeout": SECOND,
    "ack_policy": "explicit",
}


def test_groups_are_required(bench: Bench) -> None:
    bench.consumer(**OVERFLOW)
    bench.inbox("in")
    bench.ask("in", batch=1)
    bench.ask("in", group="C")
    assert bench.got("in") == [
        "400 Bad Request - Priority Group missing",
        "400 Bad Request - Invalid Priority Group",
    ]


@pytest.mark.parametrize("policy", ["overflow", "pinned_client", "prioritized"])
def test_requests_that_are_no_json_need_no_group(bench: Bench, policy: str) -> None:
    bench.consumer(priority_policy=policy, priority_groups=["g"], ack_policy="explicit")
    bench.publish(*bodies(3))
    bench.inbox("in")
    for body in (b"", b"1", b"x"):
        bench.send("in", body)
    assert bench.got("in") == ["m0", "m1", "m2"]


def test_of_several_mistakes_the_one_is_reported_that_nats_server_reports(bench: Bench) -> None:
    bench.consumer(max_batch=2)
    bench.inbox("in")
    bench.ask("in", id="x", batch=3, idle_heartbeat=1)
    bench.ask("in", id="x", batch=3, priority=10)
    bench.ask("in", id="x", batch=2, priority=10)
    assert bench.got("in") == [
        "400 Bad Request - heartbeat value too large",
        "409 Exceeded MaxRequestBatch of 2",
        "400 Bad Request - Not a Pinned Client Priority consumer",
    ]


def test_overflow(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit", **OVERFLOW)
    bench.publish(*bodies(4))
    bench.inbox("far")
    bench.inbox("near")
    bench.ask("far", batch=10, group="A", min_pending=3)
    assert bench.got("far") == ["m0", "m1"]  # 4 and 3 are pending, then too few
    bench.ask("near", batch=1, group="A")
    assert bench.got("near") == ["m2"]
    bench.ask("near", batch=10, group="A", min_ack_pending=3)
    assert bench.got("near") == ["m3"]


def test_overflow_is_looked_at_with_each_message(bench: Bench) -> None:
    bench.consumer(ack_policy="explicit", **OVERFLOW)
    bench.inbox("far")
    bench.ask("far", batch=2, group="A", min_pending=3)
    bench.publish(b"m0")
    bench.publish(b"m1")
    assert bench.got("far") == []
    bench.publish(b"m2")
    assert bench.got("far") == ["m0"]
    bench.publish(b"m3")
    assert bench.got("far") == ["m1"]


def test_levels(bench: Bench) -> None:
    bench.consumer(priority_policy="prioritized", priority_groups=["g"])
    bench.inbox("low")
    bench.inbox("high")
    bench.ask("low", batch=2, group="g", priority=5)
    bench.ask("high", batch=2, group="g", priority=0)
    bench.publish(*bodies(4))
    assert bench.got("high") == ["m0", "m1"]
    assert bench.got("low") == ["m2", "m3"]


def test_requests_of_no_group_come_last(bench: Bench) -> None:
    bench.consumer(priority_policy="prioritized", priority_groups=["g"])
    for name in ("plain", "low"):
        bench.inbox(name)
    bench.send("plain", b"2")
    bench.ask("low", batch=2, group="g", priority=9)
    bench.publish(*bodies(4))
    assert bench.got("low") == ["m0", "m1"]
    assert bench.got("plain") == ["m2", "m3"]


def test_the_first_client_is_pinned(bench: Bench) -> None:
    consumer = bench.consumer(**PINNED)
    bench.publish(*bodies(3))
    bench.inbox("one")
    bench.inbox("two")
    bench.ask("one", group="g")
    (message,) = bench.raw("one")
    pin = "pin" + "1".rjust(19, "0")
    assert message.headers == f"NATS/1.0\r\nNats-Pin-Id: {pin}\r\n\r\n".encode()
    assert consumer.info().priority_groups[0].pinned_client_id == pin
    bench.ask("two", group="g", id="bogus")
    assert bench.got("two") == ["423 Nats-Pin-Id mismatch"]
    bench.ask("two", group="g")
    assert bench.got("two") == []
    bench.ask("one", group="g", id=pin)
    assert bench.got("one") == ["m1"]
    bench.rig.advance(1)  # the pinned client asks for nothing more
    assert bench.got("two") == ["m2"]
    assert [(kind, details.get("reason")) for kind, details in bench.registry.reports] == [
        ("pinned", None),
        ("unpinned", "timeout"),
        ("pinned", None),
    ]


def test_unpin(bench: Bench) -> None:
    consumer = bench.consumer(**PINNED)
    bench.publish(b"a")
    bench.inbox("in")
    bench.ask("in", group="g")
    (message,) = bench.raw("in")
    pin = message.headers.split(b"Nats-Pin-Id: ")[1].strip().decode()
    bench.ask("in", batch=1, group="g", id=pin, expires=5)
    consumer.unpin()
    bench.rig.settle()
    wrong = "423 Nats-Wrong-Pin-Id | Nats-Pending-Messages: 1 | Nats-Pending-Bytes: 0"
    assert bench.got("in") == [wrong]
    bench.ask("in", batch=1, group="g", id=pin, expires=5)
    assert bench.got("in") == [wrong]


def test_a_consumer_stays_when_its_pin_ends_and_its_client_may_ask_again(bench: Bench) -> None:
    """The end of the pin ends the only request, at the time when the consumer was last used so
    long ago that it would be deleted without one."""
    bench.consumer(inactive_threshold=SECOND, **{**PINNED, "ack_policy": "none"})
    bench.publish(b"a", b"b")
    bench.inbox("in")
    bench.ask("in", group="g")
    (message,) = bench.raw("in")
    pin = message.headers.split(b"Nats-Pin-Id: ")[1].strip().decode()
    bench.ask("in", group="g", id=pin, batch=2, expires=5)
    bench.rig.advance(1)
    wrong = "423 Nats-Wrong-Pin-Id | Nats-Pending-Messages: 1 | Nats-Pending-Bytes: 0"
    assert bench.got("in") == ["b", wrong]
    assert bench.registry.deleted == []
    bench.rig.advance(1)
    assert bench.registry.deleted == ["C"]


def test_a_pin_outlives_its_inbox_until_its_time_is_over(bench: Bench) -> None:
    bench.consumer(**PINNED)
    bench.publish(b"a")
    gone = bench.inbox("gone")
    bench.inbox("in")
    bench.ask("gone", group="g", batch=2)
    bench.ask("in", group="g")
    gone.close()
    bench.publish(b"b")
    assert bench.got("in") == []  # the pinned client may be about to subscribe again
    bench.rig.advance(1)
    assert bench.got("in") == ["b"]


def test_a_client_that_cannot_get_the_message_is_not_pinned(bench: Bench) -> None:
    bench.consumer(**PINNED)
    bench.publish(b"a")
    bench.inbox("small")
    bench.inbox("in")
    bench.ask("small", group="g", max_bytes=1)
    assert bench.got("small")[0].startswith("409 Message Size Exceeds MaxBytes")
    bench.ask("in", group="g")
    assert bench.got("in") == ["a"]
    assert [kind for kind, _ in bench.registry.reports] == ["pinned"]
