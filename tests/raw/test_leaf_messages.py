"""Messages and interest over a leaf link: a raw peer at ours and at the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.servers.leafs import HUB, LOOP, Raw, on_uvloop, ours, plain, serve, until


@on_uvloop
async def test_messages_from_a_leaf(target: str, tmp_path: Path) -> None:
    """Trap 45: without a list of groups no group gets anything, with one just those listed."""
    async with serve(target, tmp_path) as hub:
        peer = await Raw.join(hub)
        client = await hub.dial()
        heard: list[tuple[str, bytes, str, Any]] = []

        def hear(name: str) -> Any:
            async def callback(message: Any) -> None:
                heard.append((name, message.data, message.reply, message.headers))

            return callback

        for name in ("", "q1", "q2", "q3"):
            await client.subscribe("s.*", queue=name, cb=hear(name))
        await client.flush()
        for line, names in (
            (b"LMSG s.a 1\r\nx\r\n", {""}),
            (b"LMSG s.a r 1\r\nx\r\n", {""}),
            (b"LMSG s.a | q1 1\r\nx\r\n", {"", "q1"}),
            (b"LMSG s.a + r q2 q1 q9 1\r\nx\r\n", {"", "q1", "q2"}),
            (b"LMSG s.a + r 1\r\nx\r\n", {""}),
            (b"HMSG s.a | q3 14 15\r\nNATS/1.0\r\nA:b\r\n\r\nx\r\n"[:0], set()),
            (b"HMSG s.a + r q3 19 20\r\nNATS/1.0\r\nA: b\r\n\r\n\r\nx\r\n"[:0], set()),
        ):
            if not line:
                continue
            heard.clear()
            peer.send(line)
            await peer.lines_until_pong()
            await until(lambda want=names: len(heard) >= len(want))
            assert {name for name, *_ in heard} == names
            reply = "r" if b" r " in line else ""
            assert {(data, got) for _, data, got, _ in heard} == {(b"x", reply)}
        heard.clear()
        head = b"NATS/1.0\r\nA: b\r\n\r\n"
        peer.send(b"HMSG s.a + r q3 %d %d\r\n%bx\r\n" % (len(head), len(head) + 1, head))
        await until(lambda: len(heard) == 2)
        assert {name for name, *_ in heard} == {"", "q3"}
        assert all(headers == {"A": "b"} for *_, headers in heard)
        await client.close()
        peer.close()


@on_uvloop
async def test_messages_for_a_leaf(target: str, tmp_path: Path) -> None:
    """One line however many subscriptions match, with every group that the leaf is to serve."""
    async with serve(target, tmp_path) as hub:
        peer = await Raw.join(hub)
        peer.send(b"LS+ a.b\r\nLS+ a.*\r\nLS+ q.x one 1\r\nLS+ q.* one 2\r\nLS+ q.x two 1\r\n")
        peer.send(b"LS+ m\r\nLS+ m g 3\r\n")
        await peer.lines_until_pong()
        client = await hub.dial()
        await client.publish("a.b", b"hi")
        await client.publish("a.b", b"hi", reply="r")
        await client.publish("m", b"")
        await client.publish("m", b"x", reply="r.x")
        await client.publish("a.c", b"x", headers={"K": "v"})
        await client.publish("a.c", b"x", reply="r", headers={"K": "v"})
        await peer.expect(b"LMSG a.b 2", b"hi", b"LMSG a.b r 2", b"hi")
        await peer.expect(b"LMSG m | g 0", b"", b"LMSG m + r.x g 1", b"x")
        for line in (b"HMSG a.c 18 19", b"HMSG a.c r 18 19"):
            await peer.expect(line, b"NATS/1.0", b"K: v", b"", b"x")
        await client.publish("q.x", b"z")
        line = await peer.line()
        assert line in (b"LMSG q.x | one two 1", b"LMSG q.x | two one 1")
        await peer.expect(b"z")
        peer.send(b"LS- m\r\nLS- m g\r\nLS- a.*\r\nLS- a.b\r\nLS- q.x one\r\nLS- q.* one\r\n")
        await peer.lines_until_pong()
        for subject in ("m", "a.b", "q.x"):
            await client.publish(subject, b"z")
        await peer.expect(b"LMSG q.x | two 1", b"z")
        await client.close()
        peer.close()


@on_uvloop
async def test_a_message_never_goes_back(target: str, tmp_path: Path) -> None:
    """The original may choose the sender as a member of a group, although there are others."""
    groups = b"| q " if target == "ours" else b""
    async with serve(target, tmp_path) as hub:
        peer, other = await Raw.join(hub), await Raw.join(hub, name="other")
        for one in (peer, other):
            one.send(b"LS+ a\r\nLS+ a q 1\r\n")
            await one.lines_until_pong()
        await other.lines_until_pong()
        await peer.lines_until_pong()
        peer.send(b"LMSG a %b1\r\nx\r\n" % groups)
        assert await peer.lines_until_pong() == []
        await other.expect(b"LMSG a %b1" % groups, b"x")
        peer.close()
        other.close()


@on_uvloop
async def test_nothing_goes_between_leafs_of_one_cluster(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path) as hub:
        peers = [await Raw.join(hub, name=f"n{i}", cluster="c") for i in range(2)]
        far = await Raw.join(hub, name="far", cluster="d")
        peers[1].send(b"LS+ a\r\n")
        await peers[1].lines_until_pong()
        await far.expect(b"LS+ a")
        assert await peers[0].lines_until_pong() == []  # nor announced
        peers[0].send(b"LMSG a 1\r\nx\r\n")
        await peers[0].lines_until_pong()
        assert await peers[1].lines_until_pong() == []
        far.send(b"LMSG a 1\r\ny\r\n")
        await peers[1].expect(b"LMSG a 1", b"y")
        for peer in (*peers, far):
            peer.close()


@on_uvloop
async def test_interest_is_counted(target: str, tmp_path: Path) -> None:
    """Trap 46: LS+ of a group comes again with each weight, LS- has none."""
    async with serve(target, tmp_path) as hub:
        client = await hub.dial()
        first = await client.subscribe("there")
        await client.flush()
        peer = await Raw.join(hub)
        assert plain(peer.wants) == [b"LS+ there"]
        second = await client.subscribe("there")
        groups = [await client.subscribe("g.>", queue="w") for _ in range(3)]
        await peer.expect(b"LS+ g.> w 1", b"LS+ g.> w 2", b"LS+ g.> w 3")
        await first.unsubscribe()
        await groups.pop().unsubscribe()
        await peer.expect(b"LS+ g.> w 2")
        await second.unsubscribe()
        await peer.expect(b"LS- there")
        for group in groups:
            await group.unsubscribe()
        await peer.expect(b"LS+ g.> w 1", b"LS- g.> w")
        other = await Raw.join(hub, name="other")
        other.send(b"LS+ far\r\nLS+ far q 1\r\n")
        await peer.expect(b"LS+ far", b"LS+ far q 1")
        await client.subscribe("far", queue="q")
        await peer.expect(b"LS+ far q 2")
        await other.expect(b"LS+ far q 1")
        late = await Raw.join(hub, name="late")
        assert plain(late.wants) == [b"LS+ far", b"LS+ far q 2"]
        other.close()
        assert sorted([await peer.line(), await peer.line()]) == [b"LS+ far q 1", b"LS- far"]
        await client.close()
        await peer.expect(b"LS- far q")
        peer.close()
        late.close()


@on_uvloop
async def test_weights_are_passed_on() -> None:
    """The original counts a leaf's group as one, whatever its weight, and takes off the whole."""
    async with ours(HUB % ("", "")) as hub:
        peer, other = await Raw.join(hub), await Raw.join(hub, name="other")
        other.send(b"LS+ far q 7\r\nLS+ far q 5\r\n")
        await peer.expect(b"LS+ far q 7", b"LS+ far q 5")
        other.close()
        await peer.expect(b"LS- far q")
        peer.close()


@on_uvloop
async def test_a_loop_subject_of_others_is_passed_on(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path) as hub:
        peer, other = await Raw.join(hub), await Raw.join(hub, name="other")
        peer.send(LOOP + b"0123456789012345678901\r\n")
        await other.expect(LOOP + b"0123456789012345678901")
        peer.close()
        await other.expect(b"LS- $LDS.0123456789012345678901")
        other.close()


@on_uvloop
async def test_what_the_leaf_does_not_want(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path) as hub:
        peer = await Raw.join(hub, deny_pub=["no.>"])
        peer.send(b"LS+ >\r\n")
        await peer.lines_until_pong()
        client = await hub.dial()
        await client.publish("no.a", b"x")
        await client.publish("$KV.a", b"x")
        await client.publish("yes", b"x")
        await peer.expect(b"LMSG yes 1", b"x")
        await client.close()
        peer.close()


@on_uvloop
async def test_a_peer_that_is_the_hub(target: str, tmp_path: Path) -> None:
    """It gets only the interest of this side, not that of other hubs."""
    async with serve(target, tmp_path) as spoke:
        one = await Raw.join(spoke, name="one", is_hub=True)
        two = await Raw.join(spoke, name="two", is_hub=True)
        leaf = await Raw.join(spoke, name="leaf")
        client = await spoke.dial()
        one.send(b"LS+ above\r\n")
        await leaf.expect(b"LS+ above")
        leaf.send(b"LS+ below\r\n")
        await one.expect(b"LS+ below")
        await two.expect(b"LS+ below")
        await client.subscribe("here")
        await two.expect(b"LS+ here")
        for each in (one, two, leaf):
            each.close()
        await client.close()
