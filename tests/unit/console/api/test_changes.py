"""Changes of topics and channels take effect, and need their confirmation."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from support.console import Console, console

from broker.engine.cursor.cursor import cursors_of, open_cursor

T = "/v1/topics/t"
C = f"{T}/channels/c"


async def filled(broker: Console) -> None:
    open_cursor(broker.log("t"), "c")
    await broker.publish("t", b"1", b"2", b"3")


async def test_topics(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.change("POST", "/v1/topics", {"name": "t"})
        log = broker.server.engine.log("t")
        assert log is not None
        await broker.publish("t", b"x")
        await broker.change("POST", f"{T}/pause")
        assert log.paused
        await broker.change("POST", f"{T}/unpause")
        assert not log.paused
        await broker.change("POST", f"{T}/empty", confirm="t")
        assert log.depth == 0
        await broker.change("DELETE", T, confirm="t")
        assert broker.server.engine.log("t") is None
        answer = await broker.ask("POST", "/v1/topics", {"name": "not a name"})
        assert (answer.status, answer.json["code"]) == (400, "INVALID_TOPIC")


async def test_channels(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.publish("t", b"x")
        await broker.change("POST", f"{T}/channels", {"name": "c"})
        cursor = cursors_of(broker.log("t"))["c"]
        assert cursor.depth == 1
        await broker.change("POST", f"{C}/pause")
        assert cursor.paused
        await broker.change("POST", f"{C}/unpause")
        assert not cursor.paused
        refused = await broker.ask("POST", f"{C}/empty", confirm="t")
        assert refused.status == 409
        assert cursor.depth == 1
        await broker.change("POST", f"{C}/empty", confirm="c")
        assert cursor.depth == 0
        await broker.change("DELETE", C, confirm="c")
        assert not broker.log("t").cursors


async def test_rewind_and_skip(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await filled(broker)
        moved = await broker.change("POST", f"{C}/seek", {"to": "now"}, confirm="c")
        assert (moved["seq"], moved["depth"]) == (4, 0)
        moved = await broker.change("POST", f"{C}/seek", {"seq": 2}, confirm="c")
        assert (moved["seq"], moved["depth"]) == (2, 2)
        moved = await broker.change("POST", f"{C}/seek", {"to": "oldest"}, confirm="c")
        assert moved["depth"] == 3
        both = await broker.ask("POST", f"{C}/seek", {"to": "now", "seq": 1}, confirm="c")
        assert both.status == 400
        bad = await broker.ask("POST", f"{C}/seek", {"to": "noon"}, confirm="c")
        assert (bad.status, bad.json["code"]) == (400, "INVALID_ARG_TO")


async def test_settings(tmp_path: Path) -> None:
    more = '[[storage.topic]]\npattern = "t"\nmax_msgs = 7\n'
    async with console(tmp_path, more) as broker:
        await broker.publish("t", b"x")

        async def origins() -> dict[str, tuple[object, str]]:
            rows = (await broker.get(T))["settings"]
            return {row["key"]: (row["value"], row["origin"]) for row in rows}

        assert (await origins())["max_msgs"] == (7, "configuration")
        assert (await origins())["max_age"] == ("off", "default")
        await broker.change("PUT", f"{T}/settings", {"max_age": "2h"})
        assert (await origins())["max_age"] == ("2h", "topic")
        await broker.change("PUT", f"{T}/settings", {})
        assert (await origins())["max_age"] == ("off", "default")
        bad = await broker.ask("PUT", f"{T}/settings", {"max_age": "soon", "colour": "red"})
        assert bad.status == 400
        assert "colour" in bad.json["message"]


async def test_a_policy(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await filled(broker)
        path = f"{C}/dead-letters"
        found = await broker.change("PUT", path, {"max_attempts": 4})
        assert (found["max_attempts"], found["dead_letter_topic"]) == (4, "t.dead")
        shown = (await broker.get("/v1/dead-letters"))["policies"]
        assert shown == [found]
        assert (await broker.get(C))["dead_letter_policy"] == found
        assert (await broker.change("DELETE", path))["max_attempts"] == 0


async def test_channels_of_nats_streaming_are_shown_but_not_changed(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        engine = broker.server.engine
        engine.open_log("stan/s", protocol="stan", retention="limits")
        path = f"/v1/topics/{quote('stan/s', safe='')}"
        page = await broker.get(path)
        assert (page["name"], page["kind"]) == ("stan/s", "stan")
        listed = await broker.get("/v1/topics", kind="stan")
        assert [row["name"] for row in listed["topics"]] == ["stan/s"]
        for method, more in (("DELETE", ""), ("POST", "/empty")):
            answer = await broker.ask(method, path + more, confirm="stan/s")
            assert (answer.status, answer.json["code"]) == (403, "FOREIGN")
        assert engine.log("stan/s") is not None


async def test_without_nsq_changes_are_refused(tmp_path: Path) -> None:
    from support.console import BROKER

    base = BROKER.replace('[nsq]\nlisten = "127.0.0.1:0"', '[nsq]\nlisten = ""')
    async with console(tmp_path, base=base) as broker:
        await broker.publish("t", b"x")
        assert (await broker.get("/v1/topics"))["total"] == 1
        answer = await broker.ask("POST", f"{T}/pause")
        assert (answer.status, answer.json["code"]) == (409, "OFF")
