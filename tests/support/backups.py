"""Snapshots of streams taken and restored with plain requests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

WAIT_S = 20.0


@dataclass(frozen=True)
class Snapshot:
    """What a server sent of a stream."""

    config: dict[str, Any]
    state: dict[str, Any]
    data: bytes


async def ask(client: Client, verb: str, body: object = b"") -> dict[str, Any]:
    """The answer to a request of the API."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.request(f"$JS.API.{verb}", data, timeout=WAIT_S)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def snapshot(client: Client, stream: str, **options: Any) -> Snapshot:
    """Take a snapshot, answering every part."""
    parts: list[bytes] = []
    ended = asyncio.get_running_loop().create_future()

    async def take(message: Msg) -> None:
        if message.reply:
            await message.respond(b"")
        if message.data:
            parts.append(message.data)
        elif not ended.done():
            ended.set_result(message.headers)

    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox, cb=take)
    answer = await ask(client, f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox, **options})
    assert "error" not in answer, answer
    await asyncio.wait_for(ended, WAIT_S)
    await subscription.unsubscribe()
    return Snapshot(answer["config"], answer["state"], b"".join(parts))


async def upload(client: Client, taken: Snapshot, name: str, data: bytes | None = None) -> str:
    """Send a snapshot, but for the end; returns the subject for that."""
    config = {**taken.config, "name": name}
    answer = await ask(client, f"STREAM.RESTORE.{name}", {"config": config, "state": taken.state})
    assert "error" not in answer, answer
    to: str = answer["deliver_subject"]
    data = taken.data if data is None else data
    for at in range(0, len(data), 100_000):
        part = await client.request(to, data[at : at + 100_000], timeout=WAIT_S)
        assert part.data == b""
    return to


async def restore(
    client: Client, taken: Snapshot, name: str, data: bytes | None = None
) -> dict[str, Any]:
    """Restore a stream; the answer to the last part."""
    to = await upload(client, taken, name, data)
    found: dict[str, Any] = json.loads((await client.request(to, b"", timeout=WAIT_S)).data)
    return found
