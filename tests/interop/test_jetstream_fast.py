"""Fast batches are answered by Twinwire and by nats-server alike: each answer, and its subject.

The answers are compared in their order and not by the message that was sent before them: when an
answer comes is up to the load of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import nats
import pytest
from support.filled_streams import NEWEST
from support.jetstream import masked

if TYPE_CHECKING:
    from conftest import StartBroker

START, APPEND, COMMIT, COMMIT_ONLY, PING = range(5)
WAIT_S = 10.0
LAST_ROUNDS = 20  # of publishing and its answer, in which the last answers of a script come

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.skipif(not NEWEST.exists(), reason="no nats-server to compare with"),
]


@dataclass(frozen=True)
class Message:
    """One message of a fast batch, or another request."""

    tail: str  # of its reply subject
    subject: str = "f.a"
    body: bytes = b"x"
    headers: dict[str, str] = field(default_factory=dict)


def m(
    number: int,
    op: int = APPEND,
    batch: str = "b",
    mode: str = "fail",
    every: object = 3,
    **headers: str,
) -> Message:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Message(f"{batch}.{every}.{mode}.{number}.{op}.$FI", headers=names)


def start(**more: Any) -> Message:
    return m(1, START, **more)


def batch(count: int, **more: Any) -> list[Message]:
    return [start(**more), *(m(n, **more) for n in range(2, count + 1))]


def request(verb: str, body: object = b"") -> Message:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message("", f"$JS.API.{verb}", data)


OK = {"mode": "ok"}
LATE = "Nats-Expected-Last-Sequence"
SCRIPTS: dict[str, list[Message]] = {
    "whole": [*batch(7), m(8, COMMIT), m(9), start(), m(2, COMMIT), m(1, COMMIT)],
    "end": [*batch(2), m(3, COMMIT_ONLY), *batch(4, **OK), m(5, COMMIT_ONLY), start(), m(9, 3)],
    "gaps fail": [*batch(2), m(4), m(5), *batch(3), m(2), *batch(3), m(5, COMMIT)],
    "gaps ok": [
        *batch(2, **OK), m(5, **OK), m(6, **OK), m(4, **OK), *batch(2, **OK),
        m(9, COMMIT_ONLY, **OK), *batch(2, **OK), m(9, COMMIT, **OK),
    ],
    "forms": [
        m(2), m(1, PING), m(1, 5), m(0, START), m(2, START), m(1, APPEND), m(1, COMMIT_ONLY),
        start(mode="maybe"), m(1, START, batch=""), m(1, START, batch="x" * 65),
        start(batch="x" * 64, every=0), start(batch="y", every="many"), m(1, 7),
        start(batch="z", every=100_000), Message("1.0.$FI"), Message("3.fail.1.0.$FI"),
        m(1, START, every="-3", batch="n"),
    ],
    "pings": [
        *batch(2), m(2, PING), m(1, PING), m(5, PING), m(3), *batch(2, **OK), m(4, PING, **OK),
        m(5, **OK), m(6, **OK), m(7, COMMIT, **OK),
    ],
    "duplicates": [
        start(Nats_Msg_Id="1"), m(2, Nats_Msg_Id="2"), m(3, Nats_Msg_Id="2"), m(4),
        m(5, COMMIT, Nats_Msg_Id="1"), start(Nats_Msg_Id="1"), m(2),
        start(Nats_Msg_Id="1", **OK), m(2, Nats_Msg_Id="2", **OK), m(3, Nats_Msg_Id="1", **OK),
        m(4, **OK), m(5, COMMIT_ONLY, **OK), start(Nats_Msg_Id="1", **OK),
        m(2, COMMIT, Nats_Msg_Id="2", **OK), m(1, COMMIT, Nats_Msg_Id="1"),
        m(1, COMMIT, Nats_Msg_Id="1", **OK), m(1, COMMIT, Nats_Msg_Id="new"),
    ],
    "refused": [
        start(**{LATE: "999"}), m(2), *batch(2), m(3, **{LATE: "999"}), m(4),
        start(**OK, **{LATE: "999"}), m(2, **OK), m(3, **OK, **{LATE: "999"}), m(4, **OK),
        m(5, COMMIT, **OK, **{LATE: "999"}), *batch(2), m(3, COMMIT, **{LATE: "999"}),
        start(**OK, **{LATE: "999"}), m(2, COMMIT, **OK, **{LATE: "999"}),
    ],
    "two": [
        start(every=4), start(batch="c", every=4),
        *(m(n, every=4, batch="c") for n in range(2, 12)), *(m(n, every=4) for n in range(2, 12)),
        m(12, COMMIT), m(12, COMMIT, batch="c"),
    ],
    "levels": [
        start(Nats_Required_Api_Level="99"), start(Nats_Required_Api_Level="1"),
        m(2, Nats_Required_Api_Level="1", A="b"), m(3, Nats_Required_Api_Level="99"), m(4),
        request("STREAM.MSG.GET.F", {"last_by_subj": "f.a"}),
    ],
    "full": [
        request("STREAM.UPDATE.F", {
            "name": "F", "subjects": ["f.>"], "allow_batched": True, "max_msgs_per_subject": 3,
            "discard": "new", "discard_new_per_subject": True, "max_msg_size": 10,
        }),
        *batch(5), *batch(3, **OK), m(4, COMMIT, **OK), start(),
        Message("b.3.ok.1.0.$FI", "f.other", b"much too large"),
        Message("b.3.ok.1.0.$FI", "f.other"), Message("b.3.ok.2.1.$FI", "f.other"),
        Message("b.3.ok.3.2.$FI", "f.a"),
    ],
    "off": [
        *batch(2), request("STREAM.UPDATE.F", {"name": "F", "subjects": ["f.>"]}), m(3), start(),
        start(**OK), m(1, 9),
        request("STREAM.UPDATE.F", {"name": "F", "subjects": ["f.>"], "allow_batched": True}),
        m(3), start(), m(2, COMMIT),
    ],
    "silent": [
        request("STREAM.UPDATE.F", {
            "name": "F", "subjects": ["f.>"], "allow_batched": True, "no_ack": True,
        }),
        m(2), *batch(4), m(5, COMMIT), *batch(2), m(4),
    ],
    "interest": [
        request("STREAM.CREATE.I", {
            "name": "I", "subjects": ["i.>"], "allow_batched": True, "retention": "interest",
        }),
        *(Message(f"b.2.fail.{n}.{int(n > 1)}.$FI", "i.a") for n in (1, 2, 3)),
        Message("b.2.fail.4.2.$FI", "i.a"),
    ],
    "counters": [
        request("STREAM.CREATE.C", {
            "name": "C", "subjects": ["c.>"], "allow_batched": True, "allow_msg_counter": True,
        }),
        *(Message(f"b.2.fail.{n}.{op}.$FI", "c.a", b"", {"Nats-Incr": "2"})
          for n, op in ((1, 0), (2, 1), (3, 2))),
    ],
    "atomic": [
        request("STREAM.UPDATE.F", {
            "name": "F", "subjects": ["f.>"], "allow_batched": True, "allow_atomic": True,
        }),
        start(Nats_Batch_Id="q", Nats_Batch_Sequence="1", Nats_Batch_Commit="1"), m(2, COMMIT),
    ],
}  # fmt: skip


async def answers(url: str, script: list[Message], *, enough: int = 0) -> list[tuple[str, Any]]:
    """What came back, in order: the end of the subject, and the text. Responses to requests of the
    API come first, because only they are waited for. `enough`: wait longer until so many came."""
    client = await nats.connect(url, connect_timeout=5, allow_reconnect=False)
    inbox = client.new_inbox()
    came: list[tuple[str, Any]] = []
    responses: list[tuple[str, Any]] = []
    synced = asyncio.Event()

    async def take(message: Any) -> None:
        tail = message.subject.removeprefix(inbox).lstrip(".")
        if tail == "sync":
            synced.set()
        else:
            came.append((tail, masked(message.data.decode())))

    async def settled() -> None:
        synced.clear()
        await client.publish("sync", b"", reply=f"{inbox}.sync")
        await asyncio.wait_for(synced.wait(), WAIT_S)

    async def all_came() -> None:
        for _ in range(LAST_ROUNDS):
            await settled()
        while len(responses) + len(came) < enough:
            await settled()

    try:
        await client.subscribe(f"{inbox}.>", cb=take)
        js = client.jetstream()
        await js.add_stream(name="SYNC", subjects=["sync"])
        config = {"name": "F", "subjects": ["f.>"], "allow_batched": True}
        made = await client.request("$JS.API.STREAM.CREATE.F", json.dumps(config).encode())
        assert b"error" not in made.data, made.data
        for each in script:
            if not each.tail:
                response = await client.request(each.subject, each.body, timeout=WAIT_S)
                responses.append(("", masked(response.data.decode())))
            else:
                await client.publish(
                    each.subject, each.body, reply=f"{inbox}.{each.tail}",
                    headers=each.headers or None,
                )  # fmt: skip
                for _ in range(3):
                    await settled()
                    await client.request("$JS.API.STREAM.INFO.F", b"", timeout=WAIT_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(all_came(), WAIT_S)
        return responses + came
    finally:
        await client.close()


@pytest.mark.parametrize("name", SCRIPTS)
async def test_answers_are_the_same(name: str, original: str, start_broker: StartBroker) -> None:
    broker = start_broker({"jetstream": {"enabled": True}})
    script = SCRIPTS[name]
    found = await answers(broker.nats_url, script)
    assert found
    assert found == await answers(original, script, enough=len(found))
