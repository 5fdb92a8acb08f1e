"""A mirror whose broker was killed, or lost its power, after the files for its next messages were
made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest
from support.configuration import NATS
from support.servers.leafs import on_uvloop

from broker.config.load import load
from broker.protocols.jetstream.service import JetStreamService
from broker.server.server import Server

CONFIG = NATS + '[bulk]\nlisten = ""\n'
WAIT_S = 20.0
LEFT = {  # what is left of a file without messages
    "all": lambda data: data,
    "its name": lambda data: b"",
    "a part": lambda data: data[:30],
    "its length": lambda data: bytes(4096),
}


@pytest.mark.parametrize("left", LEFT)
@on_uvloop
async def test_a_mirror_goes_on_behind_files_without_messages(left: str, tmp_path: Path) -> None:
    file = tmp_path / "twinwire.toml"
    file.write_text(CONFIG.format(data=tmp_path / "data"))
    for round_ in range(3):
        server = Server(load(file))
        await server.start()
        host, port = server.ports["nats"]
        client = await nats.connect(f"nats://{host}:{port}")
        js = client.jetstream()
        if not round_:
            await js.add_stream(name="S", subjects=["s"])
            await js.add_stream(name="M", mirror={"name": "S"})
        for number in range(10):
            await js.publish("s", b"%d %d" % (round_, number))
        async with asyncio.timeout(WAIT_S):
            while (state := (await js.stream_info("M")).state).messages < 10 * (round_ + 1):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (state.first_seq, state.last_seq) == (1, 10 * (round_ + 1))
        for seq in range(1, state.last_seq + 1):
            assert (await js.get_msg("M", seq)).data == (await js.get_msg("S", seq)).data
        await client.close()
        service = server.service(JetStreamService)
        assert service is not None
        assert service.jetstream is not None
        # files for later messages, into which nothing was written
        log = service.jetstream.accounts["$G"].streams["M"].store.log
        empty = {}
        for left_out in (0, 7, 7):
            log.skip_to(log.next_seq + left_out)
            path = Path(log.folder) / f"{log.next_seq:020d}.seg"
            empty[path] = path.read_bytes()  # the mirror may remove it before the broker stops
        await server.stop()
        for path, data in empty.items():
            path.write_bytes(LEFT[left](data))
