"""The JetStream part of the load notices what must not happen."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from behaviour.test_jetstream_remote_origins import hub
from support.servers.leafs import on_uvloop
from support.servers.processes import Address

from campaign.jetstream import STREAM_NAME, SUBJECT, JetStreamLoad
from campaign.ledgers import Finding, body_of
from campaign.load import Pace

pytestmark = pytest.mark.only_ours


async def load_of(ports: dict[str, Address], count: int) -> JetStreamLoad:
    """A load that has published so many messages, none of which was read."""
    load = JetStreamLoad(random.Random(1), Pace(), lambda what, problem: None)
    await load.prepare(ports)
    working = asyncio.create_task(load.publish(ports))
    while load.answered < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    working.cancel()
    await asyncio.wait({working})
    return load


@pytest.mark.parametrize("harm", ["", "deleted", "twice", "acked"])
def test_what_the_audit_says(tmp_path: Path, harm: str) -> None:
    said: list[str] = []

    @on_uvloop
    async def run(tmp_path: Path) -> None:
        async with hub(tmp_path) as (server, _, js):
            ports = {"nats": Address(*server.ports["nats"])}
            load = await load_of(ports, 20)
            if harm == "deleted":
                await js.delete_msg(STREAM_NAME, load.acked[7])
            elif harm == "twice":
                await js.publish(SUBJECT, body_of(7))
            elif harm == "acked":
                load.confirmed[load.acked[7]] = "before"
            try:
                await load.audit(ports)
                await load.audit(ports)  # of what is left after the purge
            except Finding as problem:
                said.append(str(problem))

    run(tmp_path)
    wanted = {
        "": [],
        "deleted": ["acknowledged messages lost: 7"],
        "twice": ["message 7 has"],
        "acked": ["acked: before"],
    }
    assert len(said) == len(wanted[harm])
    for text, part in zip(said, wanted[harm], strict=True):
        assert part in text
