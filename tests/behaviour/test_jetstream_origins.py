"""Mirrors and sources of one account over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import NotFoundError
from support.backups import ask

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

ON: dict[str, Any] = {"jetstream": {"enabled": True}, "storage": {"segment_size": "64KiB"}}
WAIT_S = 20.0
LOOK_S = 0.01
Message = tuple[int, str, bytes, dict[str, str] | None]


@pytest.fixture
def broker(start_broker: StartBroker) -> Server:
    return start_broker(ON)


@pytest.fixture
async def client(broker: Server) -> AsyncIterator[Client]:
    found = await nats.connect(broker.nats_url, allow_reconnect=False)
    yield found
    if not found.is_closed:
        await found.close()


async def create(client: Client, name: str, **config: Any) -> dict[str, Any]:
    answer = await ask(client, f"STREAM.CREATE.{name}", {"name": name, **config})
    assert "error" not in answer, answer
    return answer


async def info(client: Client, name: str) -> dict[str, Any]:
    return await ask(client, f"STREAM.INFO.{name}")


async def publish(client: Client, subject: str, *bodies: bytes, **headers: str) -> None:
    for body in bodies:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        await client.jetstream().publish(subject, body, headers=named or None)


async def reaches(client: Client, name: str, last: int) -> dict[str, Any]:
    """Wait until the last message of a stream has this seq, and nothing is left to copy."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await info(client, name)
            origins = [found["mirror"]] if "mirror" in found else found.get("sources", [])
            if found["state"]["last_seq"] >= last and not any(each["lag"] for each in origins):
                with suppress(NotFoundError):  # it can be read once it is synced
                    await client.jetstream().get_msg(name, found["state"]["last_seq"])
                    return found
            await asyncio.sleep(LOOK_S)


async def messages(client: Client, name: str) -> list[Message]:
    state = (await info(client, name))["state"]
    found = []
    for seq in range(1, state["last_seq"] + 1):
        try:
            m = await client.jetstream().get_msg(name, seq)
        except NotFoundError:
            continue
        found.append((seq, m.subject or "", m.data or b"", m.headers))
    return found


async def test_a_mirror_has_the_same_seqs_times_and_headers(client: Client) -> None:
    await create(client, "O", subjects=["o.>"])
    await publish(client, "o.1", b"a", b"b", b"c", X="y", Nats_Expected_Stream="O")
    await client.jetstream().delete_msg("O", 2)
    created = await create(client, "M", mirror={"name": "O"})
    assert created["mirror"]["name"] == "O"
    await publish(client, "o.2", b"d")
    found = await reaches(client, "M", 4)
    assert found["mirror"] == {"name": "O", "lag": 0, "active": 0}
    assert await messages(client, "M") == [
        (1, "o.1", b"a", {"X": "y"}),
        (3, "o.1", b"c", {"X": "y"}),
        (4, "o.2", b"d", None),
    ]
    theirs, own = [(await client.jetstream().get_msg(name, 3)).time for name in ("O", "M")]
    assert theirs == own
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await client.jetstream().publish("M", b"x")


async def test_a_mirror_of_some_subjects_from_a_seq_on(client: Client) -> None:
    await create(client, "O", subjects=["o.>"])
    for n in range(1, 9):
        await publish(client, f"o.{n % 2}", b"%d" % n)
    await create(client, "M", mirror={"name": "O", "filter_subject": "o.1", "opt_start_seq": 4})
    await create(
        client,
        "T",
        mirror={"name": "O", "subject_transforms": [{"src": "o.0", "dest": "even.x"}]},
    )
    await reaches(client, "M", 7)
    await reaches(client, "T", 8)
    assert [(seq, body) for seq, _, body, _ in await messages(client, "M")] == [
        (5, b"5"),
        (7, b"7"),
    ]
    assert [(seq, to) for seq, to, _, _ in await messages(client, "T")] == [
        (seq, "even.x") for seq in (2, 4, 6, 8)
    ]


async def test_sources_say_where_messages_come_from(client: Client) -> None:
    await create(client, "A", subjects=["a.*"])
    await create(client, "B", subjects=["b.*"])
    await publish(client, "a.1", b"1", Nats_Msg_Id="one")
    await publish(client, "a.2", b"2", Nats_Stream_Source="forged")
    sources = [
        {"name": "A", "filter_subject": "a.1"},
        {"name": "B", "subject_transforms": [{"src": "b.*", "dest": "from.b.{{wildcard(1)}}"}]},
    ]
    await create(client, "S", subjects=["own"], sources=sources)
    await publish(client, "own", b"mine")
    await reaches(client, "S", 2)
    await publish(client, "b.7", b"3")
    found = await reaches(client, "S", 3)
    assert [each["name"] for each in found["sources"]] == ["A", "B"]
    by_body = {body: (to, headers) for _, to, body, headers in await messages(client, "S")}
    assert by_body[b"mine"] == ("own", None)
    source = "Nats-Stream-Source"
    assert by_body[b"1"] == ("a.1", {"Nats-Msg-Id": "one", source: "A 1 a.1 > a.1"})
    assert by_body[b"3"] == ("from.b.7", {source: "B 1 b.* from.b.{{wildcard(1)}} b.7"})
    await create(client, "ALL", sources=[{"name": "A"}])
    await reaches(client, "ALL", 2)
    assert [h[source] for *_, h in await messages(client, "ALL") if h] == [
        "A 1 > > a.1",
        "A 2 > > a.2",
    ]


async def test_an_origin_may_come_later_go_and_come_again(client: Client) -> None:
    await create(client, "M", mirror={"name": "O"})
    missing = (await info(client, "M"))["mirror"]
    assert (missing["active"], missing["error"]["err_code"]) == (-1, 10059)
    await create(client, "O", subjects=["o"])
    await publish(client, "o", b"1", b"2", b"3")
    await reaches(client, "M", 3)
    await ask(client, "STREAM.DELETE.O")
    assert (await info(client, "M"))["mirror"]["error"]["err_code"] == 10059
    await create(client, "O", subjects=["o"])
    await publish(client, "o", b"x")  # its seqs begin again: the mirror has them already
    await publish(client, "o", b"y", b"z", b"4")
    await reaches(client, "M", 4)
    assert [body for *_, body, _ in await messages(client, "M")] == [b"1", b"2", b"3", b"4"]


async def test_promotion_and_other_sources(client: Client) -> None:
    await create(client, "O", subjects=["o"])
    await create(client, "P", subjects=["p"])
    await publish(client, "o", b"1", b"2")
    await create(client, "M", mirror={"name": "O"})
    await reaches(client, "M", 2)
    other = await ask(client, "STREAM.UPDATE.M", {"name": "M", "mirror": {"name": "P"}})
    assert other["error"]["err_code"] == 10055
    await ask(client, "STREAM.UPDATE.M", {"name": "M", "subjects": ["m"]})
    await publish(client, "o", b"3")
    assert (await client.jetstream().publish("m", b"own")).seq == 3
    assert [body for *_, body, _ in await messages(client, "M")] == [b"1", b"2", b"own"]
    both = {"name": "M", "subjects": ["m"], "sources": [{"name": "O"}, {"name": "P"}]}
    await ask(client, "STREAM.UPDATE.M", both)
    await publish(client, "p", b"p1")
    await reaches(client, "M", 7)
    await ask(client, "STREAM.UPDATE.M", {**both, "sources": [{"name": "P"}]})
    await publish(client, "o", b"4")
    await ask(client, "STREAM.UPDATE.M", both)  # goes on where it was
    await publish(client, "p", b"p2")
    await reaches(client, "M", 9)
    bodies = [body for *_, body, _ in await messages(client, "M")]
    assert sorted(bodies[3:]) == [b"1", b"2", b"3", b"4", b"p1", b"p2"]


async def test_limits_duplicates_and_discarded_messages(client: Client) -> None:
    await create(client, "A", subjects=["a.*"])
    await create(client, "B", subjects=["b.*"])
    for subject in ("a.1", "b.1"):
        await publish(client, subject, b"x", Nats_Msg_Id="same")
    both = [{"name": "A"}, {"name": "B"}]
    await create(client, "S", sources=both, duplicate_window=60_000_000_000)
    await reaches(client, "S", 1)
    assert (await info(client, "S"))["state"]["messages"] == 1
    await create(
        client, "FULL", sources=[{"name": "A"}], max_msgs=2, discard="new", duplicate_window=0
    )
    await publish(client, "a.2", b"1", b"2", b"3")
    await reaches(client, "FULL", 2)
    assert len(await messages(client, "FULL")) == 2


async def test_what_cannot_be_copied_is_refused_or_shown(client: Client) -> None:
    external = {"name": "O", "external": {"api": "$JS.hub.API", "deliver": ""}}
    answer = await ask(client, "STREAM.CREATE.M", {"name": "M", "mirror": external})
    assert answer["error"]["err_code"] == 10052
    await create(client, "W", subjects=["w"], retention="workqueue")
    shown = await create(client, "M", mirror={"name": "W"})
    assert "retention" in shown["mirror"]["error"]["description"]


async def test_after_kills_nothing_is_missing_or_twice(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    count, sent = 3000, 0
    data = tmp_path / "data"
    for n in range(4):
        broker = start_broker(ON, data)
        client = await nats.connect(broker.nats_url, allow_reconnect=False)
        if n == 0:
            await create(client, "O", subjects=["o.>"])
            await create(client, "M", mirror={"name": "O"})
            await create(client, "S", sources=[{"name": "O"}], subjects=["s"])
            await create(
                client, "W", sources=[{"name": "O", "filter_subject": "o.3"}], subjects=["w"]
            )
        if n < 3:
            js = client.jetstream()
            acks = []
            for _ in range(count):
                acks.append(await js.publish_async(f"o.{sent % 7}", b"%d" % sent))
                sent += 1
            await asyncio.gather(*acks)
            broker.kill()  # while copies are under way, or just done
        else:
            await reaches(client, "M", sent)
            await reaches(client, "S", sent)
            last = await reaches(client, "W", sent // 7)
            assert last["state"]["messages"] == len(range(3, sent, 7))
            for name in ("M", "S"):
                state = (await info(client, name))["state"]
                assert (state["messages"], state["last_seq"]) == (sent, sent)
            for seq in (1, count, count + 1, 2 * count, sent):
                assert (await client.jetstream().get_msg("S", seq)).data == b"%d" % (seq - 1)
        await client.close()
