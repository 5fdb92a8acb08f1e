"""Pull consumers under random requests, acks and vanishing clients: in the end every message has
arrived and is settled."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.consumers import Bench
from support.engine import SECOND, Rig

from broker.protocols.nats.accounts.account import Message

KINDS: list[dict[str, Any]] = [
    {},
    {"max_ack_pending": 5},
    {"max_waiting": 3},
    {"headers_only": True},
    {"priority_policy": "overflow", "priority_groups": ["g"]},
    {"priority_policy": "prioritized", "priority_groups": ["g"]},
    {"priority_policy": "pinned_client", "priority_groups": ["g"], "priority_timeout": SECOND},
]
ACKS = [b"+ACK", b"", b"+TERM x", b"+NXT 2"]
OTHERS = [b"-NAK", b'-NAK {"delay":500000000}', b"+WPI", b"junk"]
STEPS = 300


def seq_of(message: Message) -> int:
    return int(message.reply.split(b".")[5])


class Crowd:
    """Clients of one consumer that do anything."""

    def __init__(self, bench: Bench, kind: dict[str, Any], seed: int) -> None:
        self.bench = bench
        self.kind = kind
        self.random = random.Random(seed)
        self.consumer = bench.consumer(ack_policy="explicit", ack_wait=SECOND, **kind)
        self.subscribed: dict[str, Any] = {}
        self.sent = 0
        self.settled: set[int] = set()
        self.held: list[Message] = []

    def step(self) -> None:
        actions = [self.publish, self.subscribe, self.vanish, self.ask, self.ack, self.wait]
        self.random.choices(actions, [20, 10, 5, 30, 25, 8])[0]()
        if self.random.random() < 0.01:
            self.consumer.unpin()

    def publish(self) -> None:
        count = self.random.randint(1, 5)
        self.bench.publish(*[b"x"] * count)
        self.sent += count

    def inbox(self) -> str:
        return f"in{self.random.randint(0, 4)}"

    def subscribe(self) -> None:
        name = self.inbox()
        if name not in self.subscribed:
            self.subscribed[name] = self.bench.inbox(name)

    def vanish(self) -> None:
        if self.subscribed:
            self.subscribed.pop(self.random.choice(sorted(self.subscribed))).close()

    def request(self) -> dict[str, Any]:
        chance = self.random.random
        found: dict[str, Any] = {"batch": self.random.randint(0, 6)}
        if chance() < 0.4:
            found["no_wait"] = True
        if chance() < 0.4:
            found["expires"] = self.random.choice([0.5, 1, 3, -1])
        if chance() < 0.2:
            found["max_bytes"] = self.random.randint(1, 300)
        if chance() < 0.2 and found.get("expires", 0) > 0:
            found["idle_heartbeat"] = found["expires"] / 3
        policy = self.kind.get("priority_policy")
        if policy is not None:
            found["group"] = "g"
        if policy == "overflow" and chance() < 0.5:
            found["min_pending"] = self.random.randint(1, 9)
        if policy == "prioritized":
            found["priority"] = self.random.randint(0, 9)
        if policy == "pinned_client" and chance() < 0.5:
            found["id"] = self.consumer.info().priority_groups[0].pinned_client_id or "bogus"
        return found

    def ask(self) -> None:
        self.bench.ask(self.inbox(), settle=self.random.random() < 0.5, **self.request())

    def collect(self) -> list[Message]:
        found = []
        for box in self.bench.boxes.values():
            found += [message for message in box if message.reply.startswith(b"$JS.ACK")]
            box.clear()
        return found

    def ack(self) -> None:
        self.held += self.collect()
        if self.held:
            message = self.held.pop(self.random.randrange(len(self.held)))
            body = self.random.choice(ACKS + OTHERS)
            if body in ACKS:
                self.settled.add(seq_of(message))
            self.bench.ack(message, body, self.random.choice(["", "in1"]))

    def wait(self) -> None:
        self.bench.rig.advance(self.random.choice([0.1, 0.5, 1.1, 4]))

    def finish(self) -> None:
        """All clients vanish, and one that behaves takes what is left."""
        for subscription in self.subscribed.values():
            subscription.close()
        self.bench.rig.advance(30)
        self.bench.boxes.clear()
        self.bench.inbox("end")
        group = {"group": "g"} if "priority_groups" in self.kind else {}
        for _ in range(3 * self.sent + 50):
            self.bench.ask("end", batch=10, no_wait=True, **group)
            for message in self.collect():
                self.settled.add(seq_of(message))
                self.bench.ack(message)
            if len(self.settled) == self.sent:
                return
            self.bench.rig.advance(1.5)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_every_message_arrives_and_is_settled(kind: dict[str, Any], seed: int) -> None:
    with Rig(None, clock=(SECOND, SECOND), memory_bytes_max=64 << 20) as rig:
        crowd = Crowd(Bench(rig), kind, seed)
        for _ in range(STEPS):
            crowd.step()
        crowd.finish()
        assert crowd.settled == set(range(1, crowd.sent + 1))
        info = crowd.consumer.info()
        assert (info.num_ack_pending, info.num_pending, info.num_waiting) == (0, 0, 0)
        crowd.consumer.close("409 Consumer Deleted")
