"""Snapshots and restorations over real connections: flow, damage, rights, what a kill leaves."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from support.backups import WAIT_S, ask, restore, snapshot, upload
from support.disks import FILLER, small_disk
from support.disks import fill as fill_disk

from broker.net.s2 import chunk_of, decompress

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

ON: dict[str, Any] = {"jetstream": {"enabled": True}, "storage": {"segment_size": "64KiB"}}
COUNT = 400


@pytest.fixture
def broker(start_broker: StartBroker) -> Server:
    return start_broker(ON)


@pytest.fixture
async def client(broker: Server) -> AsyncIterator[Client]:
    found = await nats.connect(broker.nats_url, allow_reconnect=False)
    yield found
    if not found.is_closed:
        await found.close()


async def fill(client: Client, name: str = "S", **settings: Any) -> list[bytes]:
    """A stream with messages that do not compress; returns their bodies."""
    config = {"name": name, "subjects": [f"{name.lower()}.>"], **settings}
    assert "error" not in await ask(client, f"STREAM.CREATE.{name}", config)
    bodies = [random.Random(n).randbytes(500) for n in range(COUNT)]
    js = client.jetstream()
    for n, body in enumerate(bodies):
        await js.publish_async(f"{name.lower()}.{n % 7}", body)
    await js.publish_async_completed()
    return bodies


async def bodies_of(client: Client, name: str) -> dict[int, bytes]:
    js = client.jetstream()
    last = (await js.stream_info(name)).state.last_seq
    found = {}
    for seq in range(1, last + 1):
        try:
            found[seq] = (await js.get_msg(name, seq)).data or b""
        except nats.js.errors.NotFoundError:
            continue
    return found


def with_a_damaged_message(data: bytes) -> bytes:
    """The same snapshot, in which one byte of a message in the middle differs."""
    content = bytearray(decompress(data))
    content[len(content) // 2] ^= 1
    pieces = (bytes(content[at : at + 65536]) for at in range(0, len(content), 65536))
    return b"".join(chunk_of(piece, piece) for piece in pieces)


def left_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in {".upload", ".restoring"}]


async def is_free(client: Client, name: str, folder: Path) -> None:
    """Nothing is left of a restoration that failed: the name can be used."""
    assert (await ask(client, f"STREAM.INFO.{name}"))["error"]["err_code"] == 10059
    assert not left_in(folder)
    created = await ask(client, f"STREAM.CREATE.{name}", {"name": name})
    assert created["state"]["last_seq"] == 0


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_all_messages_and_their_gaps_come_back(client: Client, storage: str) -> None:
    bodies = await fill(client, storage=storage)
    for seq in (1, 2, 50, COUNT):
        await ask(client, "STREAM.MSG.DELETE.S", {"seq": seq})
    taken = await snapshot(client, "S", chunk_size=4096)
    assert len(taken.data) > 50 * 4096
    await ask(client, "STREAM.DELETE.S")
    answer = await restore(client, taken, "S")
    assert answer["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    for key in ("first_seq", "last_seq", "messages", "bytes", "num_deleted", "num_subjects"):
        assert answer["state"][key] == taken.state[key], key
    gone = {1, 2, 50, COUNT}
    assert await bodies_of(client, "S") == {
        seq: body for seq, body in enumerate(bodies, 1) if seq not in gone
    }
    assert (await client.jetstream().publish("s.0", b"next")).seq == COUNT + 1


async def test_a_snapshot_has_what_there_was_when_it_began(client: Client) -> None:
    await fill(client)
    go_on = True

    async def publish() -> int:
        count = 0
        while go_on:
            await client.jetstream().publish("s.more", b"later")
            count += 1
        return count

    publishing = asyncio.ensure_future(publish())
    taken = await snapshot(client, "S", chunk_size=1024, window_size=1024)
    go_on = False
    assert await publishing
    await ask(client, "STREAM.DELETE.S")
    answer = await restore(client, taken, "S")
    assert answer["state"]["last_seq"] == taken.state["last_seq"]
    assert answer["state"]["messages"] == taken.state["messages"]


async def test_parts_wait_for_answers(client: Client) -> None:
    await fill(client)
    inbox, parts = client.new_inbox(), asyncio.Queue[Msg]()
    await client.subscribe(inbox, cb=parts.put)
    await ask(
        client,
        "STREAM.SNAPSHOT.S",
        {"deliver_subject": inbox, "chunk_size": 1024, "window_size": 2048},
    )
    first, second = await parts.get(), await parts.get()
    assert first.reply.rsplit(".", 2)[1:] == ["1024", "1"]
    await second.respond(b"")
    assert (await asyncio.wait_for(parts.get(), WAIT_S)).reply.endswith(".1024.3")
    await client.publish(first.reply + "0", b"")  # no such part was sent
    last = await asyncio.wait_for(parts.get(), WAIT_S)  # a window of two parts is full
    assert last.headers == {"Status": "408", "Description": "No Flow Response"}


@pytest.mark.parametrize(
    "damage", ["a flipped bit", "a damaged message", "cut off", "no snapshot", "empty"]
)
async def test_a_damaged_snapshot_is_refused_and_leaves_nothing(
    client: Client, broker: Server, damage: str
) -> None:
    await fill(client)
    taken = await snapshot(client, "S")
    await ask(client, "STREAM.DELETE.S")
    data = bytearray(taken.data)
    data[len(data) // 2] ^= 4
    text = {
        "a flipped bit": bytes(data),
        "a damaged message": with_a_damaged_message(taken.data),
        "cut off": taken.data[:-3000],
        "no snapshot": b"junk" * 100,
        "empty": b"",
    }[damage]
    answer = await restore(client, taken, "S", text)
    assert answer["error"]["err_code"] == 10062
    assert answer["error"]["description"].startswith("restore failed: ")
    await is_free(client, "S", broker.data)


async def test_a_stalled_upload_is_given_up(client: Client, broker: Server) -> None:
    await fill(client)
    taken = await snapshot(client, "S")
    ended = asyncio.get_running_loop().create_future()

    async def end(message: Msg) -> None:
        ended.set_result(json.loads(message.data))

    await client.subscribe("$JS.EVENT.ADVISORY.STREAM.RESTORE_COMPLETE.T", cb=end)
    await upload(client, taken, "T")
    advisory = await asyncio.wait_for(ended, WAIT_S)
    assert advisory["bytes"] == len(taken.data)
    await is_free(client, "T", broker.data)


async def test_a_part_for_which_there_is_no_room_is_refused(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        broker = start_broker(ON, disk / "data")
        client = await nats.connect(broker.nats_url)
        await fill(client)
        taken = await snapshot(client, "S")
        config = {**taken.config, "name": "T"}
        begun = await ask(client, "STREAM.RESTORE.T", {"config": config, "state": taken.state})
        to = begun["deliver_subject"]
        assert (await client.request(to, taken.data[:10], timeout=WAIT_S)).data == b""
        fill_disk(disk)
        answer = json.loads((await client.request(to, bytes(100_000), timeout=WAIT_S)).data)
        assert answer["error"]["err_code"] == 10062
        assert "No space left on device" in answer["error"]["description"]
        (disk / FILLER).unlink()
        await is_free(client, "T", broker.data)
        await client.close()
        broker.close()


async def test_a_name_that_was_taken_meanwhile_keeps_its_stream(client: Client) -> None:
    await fill(client)
    taken = await snapshot(client, "S")
    to = await upload(client, taken, "T")
    await ask(client, "STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
    await client.jetstream().publish("t", b"kept")
    answer = json.loads((await client.request(to, b"", timeout=WAIT_S)).data)
    assert answer["error"]["err_code"] == 10130
    assert await bodies_of(client, "T") == {1: b"kept"}


async def test_subjects_that_another_stream_has_are_refused(client: Client) -> None:
    await fill(client)
    taken = await snapshot(client, "S")
    answer = await restore(client, taken, "T")
    assert answer["error"]["err_code"] == 10065


async def test_a_snapshot_goes_only_where_its_client_may_read(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    rules = 'publish: ["$JS.API.>", "$JS.SNAPSHOT.>", "s.>"], subscribe: "_INBOX.>"'
    accounts = (
        f"authorization {{ users: [ {{user: some, password: p, permissions: {{{rules}}}}} ] }}"
    )
    (tmp_path / "nats.conf").write_text(accounts)
    broker = start_broker({**ON, "nats": {"config_file": str(tmp_path / "nats.conf")}})
    client = await nats.connect(broker.nats_url, user="some", password="p")
    await fill(client)
    for subject in ("elsewhere", "_INBOXES.x", "s.0"):
        answer = await ask(client, "STREAM.SNAPSHOT.S", {"deliver_subject": subject})
        assert answer["error"]["err_code"] == 10015
    taken = await snapshot(client, "S")
    assert taken.state["messages"] == COUNT
    await client.close()


async def test_a_kill_leaves_no_part_of_a_stream(
    client: Client, broker: Server, start_broker: StartBroker
) -> None:
    bodies = await fill(client)
    taken = await snapshot(client, "S")
    await ask(client, "STREAM.DELETE.S")
    assert "error" not in await restore(client, taken, "S")
    taken.config["subjects"] = ["t.>"]
    await upload(client, taken, "T")
    broker.kill()
    await client.close()
    again = start_broker(ON, broker.data)
    second = await nats.connect(again.nats_url)
    assert await bodies_of(second, "S") == dict(enumerate(bodies, 1))
    await is_free(second, "T", broker.data)
    await second.close()


def archive(*entries: tuple[str, int, bytes]) -> bytes:
    """A snapshot as nats-server 2.15 makes it, of (name, seq, body)."""

    def number(value: int) -> bytes:
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    content = b"NATSARC1"
    for name, seq, body in (*entries, ("", 0, b"")):
        fields = (len(name), 2 * 1_700_000_000_000_000_000 if name else 0, seq, 0, len(body))
        content += b"".join(map(number, fields)) + name.encode() + body
    return chunk_of(content, content)


@pytest.mark.parametrize(
    "entries",
    [
        [("state.json", 0, b"[]")],
        [("state.json", 0, b"{bad")],
        [("consumers/c", 0, b'{"config":7}')],
        [("consumers/c", 0, b'{"config":{"name":"c"},"state":{"pending":{"x":{}}}}')],
        [("s.1", 1 << 63, b"x")],
        [("s.1", 1, b"x"), ("state.json", 0, b'{"last_seq":9223372036854775807}')],
    ],
)
async def test_an_archive_with_an_invalid_entry_is_refused(
    client: Client, broker: Server, entries: list[tuple[str, int, bytes]]
) -> None:
    await ask(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    taken = await snapshot(client, "S")
    await ask(client, "STREAM.DELETE.S")
    answer = await restore(client, taken, "S", archive(*entries))
    assert answer["error"]["err_code"] == 10062
    await is_free(client, "S", broker.data)


def evil_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*evil*"))


async def test_an_archive_keeps_names_that_lead_elsewhere_inside(
    client: Client, broker: Server
) -> None:
    await ask(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    taken = await snapshot(client, "S")
    await ask(client, "STREAM.DELETE.S")
    evil = [("consumers/../../../evil", 0, b'{"config":{}}'), ("s.1", 5, b"x")]
    answer = await restore(client, taken, "S", archive(*evil))
    assert answer["state"]["last_seq"] == 5
    assert answer["state"]["consumer_count"] == 0
    assert not evil_in(broker.data.parent)
