"""Push consumers: when they deliver, heartbeats, flow control, rates."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from support.consumers import Bench
from support.engine import SECOND, Rig

from broker.protocols.jetstream.consumers import limits


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Rig(None, clock=(SECOND, SECOND), memory_bytes_max=256 << 20) as rig:
        yield Bench(rig)


def bodies(count: int) -> list[bytes]:
    return [b"m%d" % i for i in range(count)]


def test_delivers_while_somebody_subscribes(bench: Bench) -> None:
    consumer = bench.consumer(deliver_subject="to")
    bench.publish(*bodies(2))
    assert not consumer.push_bound
    subscriber = bench.inbox("to")
    bench.rig.settle()
    assert consumer.push_bound
    assert bench.got("to") == ["m0", "m1"]
    bench.publish(b"x")
    assert bench.got("to") == ["x"]
    subscriber.close()
    bench.rig.settle()
    assert not consumer.push_bound
    bench.publish(b"y")
    bench.inbox("to")
    bench.rig.settle()
    assert bench.got("to") == ["y"]


def test_a_wildcard_subscriber_counts(bench: Bench) -> None:
    consumer = bench.consumer(deliver_subject="to.me")
    bench.publish(b"a")
    bench.inbox("to.*")
    bench.rig.settle()
    assert consumer.push_bound
    assert bench.got("to.*") == ["a"]


class _Watcher:
    """Writes its name down when it looks for subscribers."""

    def __init__(self, name: str, looked: list[str]) -> None:
        self.name = name
        self.looked = looked

    def interest_changed(self) -> None:
        self.looked.append(self.name)


def test_only_consumers_that_a_subscription_may_concern_look_for_subscribers(bench: Bench) -> None:
    looked: list[str] = []
    for name in ("to.1", "to.2", "elsewhere"):
        bench.outlet.watch(name.encode(), _Watcher(name, looked))
    for subject, expected in (
        ("away.*", []),
        ("to.3", []),
        ("to.2", ["to.2"]),
        ("to.*", ["to.1", "to.2"]),
        ("to.1.>", ["to.1"]),  # it begins like it: compared when it looks
        ("*", ["elsewhere", "to.1", "to.2"]),
    ):
        bench.inbox(subject)
        bench.rig.settle()
        assert sorted(looked) == expected, subject
        looked.clear()


def test_a_group_needs_a_member(bench: Bench) -> None:
    consumer = bench.consumer(deliver_subject="to", deliver_group="g")
    bench.publish(b"a")
    bench.inbox("to")
    bench.rig.settle()
    assert (consumer.push_bound, bench.got("to")) == (False, [])
    bench.inbox("to", b"other")
    bench.rig.settle()
    assert not consumer.push_bound
    bench.boxes["member"] = member = []
    bench.account.listen(b"to", member.append, b"g")
    bench.rig.settle()
    assert consumer.push_bound
    assert bench.got("member") == ["a"]
    assert bench.got("to") == ["a", "a"]  # the plain one, and the other group


def test_acks_of_messages(bench: Bench) -> None:
    consumer = bench.consumer(deliver_subject="to", ack_policy="explicit", max_ack_pending=2)
    bench.inbox("to")
    bench.publish(*bodies(4))
    one, two = bench.raw("to")
    bench.ack(one)
    bench.ack(two)
    assert bench.got("to") == ["m2", "m3"]
    assert consumer.info().num_ack_pending == 2


def test_heartbeats(bench: Bench) -> None:
    bench.consumer(deliver_subject="to", idle_heartbeat=SECOND)
    bench.rig.advance(5)
    bench.inbox("to")
    bench.rig.advance(0.5)
    assert bench.got("to") == []
    bench.publish(b"a")
    bench.rig.advance(0.9)
    assert bench.got("to") == ["a"]
    bench.rig.advance(0.1)
    beat = "100 Idle Heartbeat | Nats-Last-Consumer: 1 | Nats-Last-Stream: 1"
    assert bench.got("to") == [beat]
    bench.rig.advance(2)
    assert bench.got("to") == [beat, beat]


def test_flow_control(bench: Bench) -> None:
    bench.consumer(deliver_subject="to", idle_heartbeat=SECOND, flow_control=True)
    bench.inbox("to")
    bench.publish(*[b"x" * (64 << 10)] * 100)
    found = bench.raw("to")
    requests = [m for m in found if m.headers.startswith(b"NATS/1.0 100 FlowControl Request")]
    messages = [m for m in found if m not in requests]
    assert len(requests) == 1
    before = found.index(requests[0])
    window = limits.FLOW_WINDOW_FIRST
    assert window // 2 <= before * (64 << 10) < window // 2 + 2 * (64 << 10)
    assert window <= len(messages) * (64 << 10) < window + 2 * (64 << 10)
    assert requests[0].reply.startswith(b"$JS.FC.S.C.")
    bench.rig.advance(1)
    (beat,) = bench.got("to")
    assert beat.endswith(f"Nats-Consumer-Stalled: {requests[0].reply.decode()}")
    bench.account.publish(b"$JS.FC.S.C.zzzz", b"")
    bench.rig.settle()
    assert bench.got("to") == []
    assert bench.account.publish(requests[0].reply, b"") == 1
    bench.rig.settle()
    more = [m for m in bench.raw("to") if not m.headers]
    assert len(messages) + len(more) == 80  # the window is twice as large, and half is answered


def test_a_rate_limit(bench: Bench) -> None:
    bench.consumer(deliver_subject="to", rate_limit_bps=8 * 1000)
    bench.inbox("to")
    bench.publish(*[b"x" * 1000] * 4)
    assert len(bench.got("to")) == 1
    bench.rig.advance(2.2)
    assert len(bench.got("to")) == 2
    bench.rig.advance(2)
    assert len(bench.got("to")) == 1


def test_a_rate_limit_lets_as_much_pass_at_once_as_the_largest_message_has(bench: Bench) -> None:
    bench.registry.largest = 3000
    bench.consumer(deliver_subject="to", rate_limit_bps=8 * 1000)
    bench.inbox("to")
    bench.publish(*[b"x" * 900] * 6)  # a little more with their subjects
    assert len(bench.got("to")) == 3
    bench.rig.advance(0.5)
    assert bench.got("to") == []
    bench.rig.advance(0.5)
    assert len(bench.got("to")) == 1
    bench.rig.advance(10)
    assert len(bench.got("to")) == 2
    bench.publish(*[b"x" * 900] * 4)
    assert len(bench.got("to")) == 3  # it has not been used meanwhile


def test_replay_with_the_gaps_of_the_publishers(bench: Bench) -> None:
    bench.consumer("other", deliver_subject="other")
    for body in bodies(3):
        bench.publish(body)
        bench.rig.advance(2)
    bench.consumer(deliver_subject="to", replay_policy="original")
    bench.inbox("to")
    bench.rig.settle()
    assert bench.got("to") == ["m0"]
    bench.rig.advance(1.9)
    assert bench.got("to") == []
    bench.rig.advance(0.1)
    assert bench.got("to") == ["m1"]
    bench.rig.advance(2)
    assert bench.got("to") == ["m2"]
    bench.publish(b"new")
    assert bench.got("to") == ["new"]


def test_an_ephemeral_consumer_without_subscribers_is_deleted(bench: Bench) -> None:
    bench.consumer(deliver_subject="to", inactive_threshold=5 * SECOND)
    subscriber = bench.inbox("to")
    bench.rig.advance(60)
    assert bench.registry.deleted == []
    subscriber.close()
    bench.rig.settle()
    bench.rig.advance(4.9)
    assert bench.registry.deleted == []
    bench.rig.advance(0.1)
    assert bench.registry.deleted == ["C"]


def test_messages_that_wait_for_acks_do_not_keep_it(bench: Bench) -> None:
    box = bench.inbox("to")
    bench.consumer(
        deliver_subject="to",
        ack_policy="explicit",
        ack_wait=30 * SECOND,
        inactive_threshold=5 * SECOND,
    )
    bench.publish(b"a")
    box.close()
    bench.rig.advance(10)
    assert bench.registry.deleted == ["C"]


def test_a_pull_request_is_refused(bench: Bench) -> None:
    bench.consumer(deliver_subject="to")
    bench.inbox("in")
    bench.ask("in")
    assert bench.got("in") == ["409 Consumer is push based"]


def test_headers_only(bench: Bench) -> None:
    bench.consumer(deliver_subject="to", headers_only=True)
    bench.inbox("to")
    bench.publish(b"body")
    (message,) = bench.raw("to")
    assert (message.headers, message.data) == (b"NATS/1.0\r\nNats-Msg-Size: 4\r\n\r\n", b"")


def test_the_subject_may_change(bench: Bench) -> None:
    consumer = bench.consumer(deliver_subject="to")
    bench.inbox("to")
    bench.inbox("elsewhere")
    consumer.configure(msgspec.structs.replace(consumer.config, deliver_subject="elsewhere"))
    bench.publish(b"a")
    assert (bench.got("to"), bench.got("elsewhere")) == ([], ["a"])
