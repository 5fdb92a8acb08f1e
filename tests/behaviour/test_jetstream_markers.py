"""Markers that a stream leaves where the last message of a subject went for its age."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from support.backups import ask

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours

ON: dict[str, Any] = {"jetstream": {"enabled": True}}
SECOND = 1_000_000_000
WAIT_S = 20.0
MARKER = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "2s", "Nats-Rollup": "sub"}


@pytest.fixture
async def client(start_broker: StartBroker) -> AsyncIterator[Client]:
    found = await nats.connect(start_broker(ON).nats_url)
    yield found
    await found.close()


async def create(client: Client, **config: Any) -> None:
    defaults = {"name": "S", "subjects": ["s.>"], "subject_delete_marker_ttl": 2 * SECOND}
    allowed = {"allow_msg_ttl": True, "allow_rollup_hdrs": True}
    answer = await ask(client, "STREAM.CREATE.S", {**defaults, **allowed, **config})
    assert "error" not in answer, answer


async def publish(client: Client, subject: str, **headers: str) -> None:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    await client.jetstream().publish(subject, b"x", headers=named or None)


async def consumed(client: Client, count: int) -> list[Msg]:
    """The next messages of a new consumer of everything."""
    subscription = await client.jetstream().subscribe("s.>", ordered_consumer=True)
    return [await subscription.next_msg(WAIT_S) for _ in range(count)]


async def state_when(client: Client, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The state of the stream once it is so."""
    async with asyncio.timeout(WAIT_S):
        while True:
            state: dict[str, Any] = (await ask(client, "STREAM.INFO.S"))["state"]
            if reached(state):
                return state
            await asyncio.sleep(0.05)


async def is_empty_after(client: Client, last: int) -> None:
    """Everything goes in the end, and nothing comes after this seq."""
    state = await state_when(client, lambda state: state["messages"] == 0)
    assert state["last_seq"] == last


async def test_the_last_message_of_a_subject_leaves_one(client: Client) -> None:
    await create(client, max_age=SECOND // 2)
    for subject in ("s.1", "s.1", "s.2"):
        await publish(client, subject)
    found = await consumed(client, 5)
    assert [(m.subject, m.data, m.headers) for m in found[3:]] == [
        ("s.1", b"", MARKER),
        ("s.2", b"", MARKER),
    ]
    await is_empty_after(client, 5)


async def test_a_message_that_is_replaced_or_purged_leaves_none(client: Client) -> None:
    await create(client)
    await publish(client, "s.1", Nats_TTL="2s")
    await publish(client, "s.1", Nats_TTL="3s")
    await publish(client, "s.2", Nats_TTL="2s", KV_Operation="PURGE")
    await publish(client, "s.3")
    await ask(client, "STREAM.PURGE.S", {"filter": "s.3"})
    marker = (await consumed(client, 4))[3]
    assert (marker.subject, marker.metadata.sequence.stream) == ("s.1", 5)
    await is_empty_after(client, 5)


async def test_what_expired_while_the_broker_was_down_leaves_one(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(ON, tmp_path / "data")
    client = await nats.connect(broker.nats_url)
    await create(client)
    await publish(client, "s.1", Nats_TTL="2s")
    await client.close()
    broker.kill()
    await asyncio.sleep(2)
    client = await nats.connect(start_broker(ON, tmp_path / "data").nats_url)
    await state_when(client, lambda state: state["last_seq"] == 2)
    [marker] = await consumed(client, 1)
    assert marker.headers == MARKER
    await client.close()
