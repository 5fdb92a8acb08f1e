"""Requests to the system account: who is answered, what is answered, and with which envelope."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import orjson
import pytest
import snappy  # type: ignore[import-untyped]
from support.fakes.system import SERVER_ID, VARZ, FakeServer

from broker.protocols.nats import limits
from broker.protocols.nats.system import errors
from broker.protocols.nats.system.requests import Actions
from broker.routing.local import publish

PING = "$SYS.REQ.SERVER.PING"
ME = f"$SYS.REQ.SERVER.{SERVER_ID}"
PAGES = ("VARZ", "SUBSZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ", "HEALTHZ")


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


# --- of the server ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("subject", [PING, ME])
def test_pages(server: FakeServer, name: str, subject: str) -> None:
    answer = server.ask_one(f"{subject}.{name}")
    assert list(answer) == ["server", "data"]
    assert answer["server"]["id"] == SERVER_ID
    assert answer["data"] == (VARZ if name == "VARZ" else {"page": name})


@pytest.mark.parametrize("subject", [PING, f"{PING}.STATSZ", f"{ME}.STATSZ"])
def test_statistics(server: FakeServer, subject: str) -> None:
    answer = server.ask_one(subject)
    assert list(answer) == ["server", "statsz"]
    assert answer["statsz"]["sent"] == {"msgs": 6, "bytes": 7}


def test_who_it_is(server: FakeServer) -> None:
    answer = server.ask_one(f"{PING}.IDZ", b"not even json")
    assert list(answer.items()) == [("name", "twin"), ("host", "0.0.0.0"), ("id", SERVER_ID)]


def test_statistics_for_everybody(server: FakeServer) -> None:
    """Without a reply subject they go where they always go."""
    server.system_account.watch(f"$SYS.SERVER.{SERVER_ID}.STATSZ")
    server.system_account.request(PING)
    server.clock.run()
    assert len(server.system_account.events(f"$SYS.SERVER.{SERVER_ID}.STATSZ")) == 1


def test_options_reach_the_page(server: FakeServer) -> None:
    server.ask_one(f"{PING}.CONNZ", b'{"sort":"idle","Limit":5,"auth":true,"server_name":"tw"}')
    ((name, options),) = server.pages.asked
    assert name == "CONNZ"
    assert (options["sort"], options["limit"], options["auth"]) == ("idle", 5, True)
    assert (options["cid"], options["acc"]) == (0, "")


@pytest.mark.parametrize(
    ("body", "answered"),
    [
        (b'{"server_name":"win"}', True),
        (b'{"server_name":"WIN"}', False),
        (b'{"server_name":"win","exact_match":true}', False),
        (b'{"server_name":"twin","exact_match":true}', True),
        (b'{"host":"0.0"}', True),
        (b'{"host":"1.1"}', False),
        (b'{"cluster":"c"}', False),
        (b'{"domain":"d"}', False),
        (b'{"tags":["AZ:1 "]}', True),
        (b'{"tags":["az:1","big"]}', True),
        (b'{"tags":["az:1","small"]}', False),
        (b'{"tags":[]}', True),
    ],
)
@pytest.mark.parametrize("name", ["VARZ", "STATSZ"])
def test_which_servers_are_meant(
    server: FakeServer, name: str, body: bytes, answered: bool
) -> None:
    assert len(server.ask(f"{PING}.{name}", body)) == answered


@pytest.mark.parametrize("name", ["STATSZ", "VARZ", "PROFILEZ", "EXPVARZ"])
def test_bodies_that_are_no_json(server: FakeServer, name: str) -> None:
    answer = server.ask_one(f"{PING}.{name}", b"{")
    assert list(answer) == ["server", "error"]
    assert answer["error"] == {"code": 400, "description": "unexpected end of JSON input"}


def test_bodies_that_are_too_long(server: FakeServer) -> None:
    answer = server.ask_one(f"{PING}.VARZ", b" " * (limits.NATS_SYSTEM_BODY + 1))
    assert answer["error"] == {"code": 400, "description": "request body too long"}


def test_pages_that_cannot_be(server: FakeServer) -> None:
    server.pages.wrong = "invalid sorting option: x"
    answer = server.ask_one(f"{PING}.CONNZ", b'{"sort":"x"}')
    assert list(answer) == ["server", "data", "error"]
    assert answer["data"] is None
    assert answer["error"] == {"code": 500, "description": "invalid sorting option: x"}


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        (b"gzip", b"gzip"),
        (b"GZIP, Snappy", b"snappy"),
        (b"s2", b"snappy"),
        (b"deflate", b"identity"),
    ],
)
def test_compressed_answers(server: FakeServer, accept: bytes, encoding: bytes) -> None:
    request = b"NATS/1.0\r\nAccept-Encoding: %b\r\n\r\n" % accept
    headers, body = server.ask_one(f"{PING}.HEALTHZ", headers=request)
    assert headers == b"NATS/1.0\r\nContent-Encoding: %b\r\n\r\n" % encoding
    if encoding == b"gzip":
        body = gzip.decompress(body)
    if encoding == b"snappy":
        assert body.startswith(b"\xff\x06\x00\x00sNaPpY")
        body = snappy.StreamDecompressor().decompress(body)
    assert orjson.loads(body)["data"] == {"page": "HEALTHZ"}


def test_statistics_are_not_compressed(server: FakeServer) -> None:
    request = b"NATS/1.0\r\nAccept-Encoding: gzip\r\n\r\n"
    assert "statsz" in server.ask_one(f"{PING}.STATSZ", headers=request)


async def test_long_answers_are_compressed_by_a_thread(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NATS_PACK_INLINE", 10)
    home = server.system_account
    home.watch("inbox")
    arrived = asyncio.Event()
    plain = home.publish

    def noticed(subject: bytes, data: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        arrived.set()
        return plain(subject, data, reply, headers)

    monkeypatch.setattr(home, "publish", noticed)
    headers = b"NATS/1.0\r\nAccept-Encoding: gzip\r\n\r\n"
    home.request(f"{PING}.HEALTHZ", reply=b"inbox", headers=headers)
    server.clock.run()
    assert home.published == []
    await asyncio.wait_for(arrived.wait(), 10)
    assert orjson.loads(gzip.decompress(home.published[0][2]))["data"] == {"page": "HEALTHZ"}


def test_nobody_waits_for_the_answer(server: FakeServer) -> None:
    server.system_account.request(f"{PING}.VARZ", reply=b"gone")
    server.system_account.request(f"{PING}.STATSZ", reply=b"gone")
    server.system_account.request(f"{PING}.VARZ")
    server.clock.run()
    assert server.pages.asked == []


def test_too_many_requests(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NATS_SYSTEM_REQUESTS", 3)
    server.system_account.watch("inbox")
    for _ in range(5):
        server.system_account.request(f"{PING}.HEALTHZ", reply=b"inbox")
    server.clock.run()
    assert len(server.system_account.published) == 3
    assert len(server.ask(f"{PING}.HEALTHZ")) == 1


def test_other_servers_are_not_answered_for(server: FakeServer) -> None:
    assert server.ask("$SYS.REQ.SERVER.NOTHER.VARZ") == []
    assert server.ask(f"{PING}.NOPE") == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Profile name not specified"),
        (b'{"name":"nope"}', 'Profile "nope" not found'),
        (b'{"name":"cpu"}', "Duration 0s should be between 0s and 15s"),
        (b'{"name":"cpu","duration":16000000000}', "Duration 16s should be between 0s and 15s"),
        (b'{"name":"cpu","duration":1000000000}', 'Profile "cpu" not found'),
    ],
)
def test_profiles(server: FakeServer, body: bytes, text: str) -> None:
    answer = server.ask_one(f"{PING}.PROFILEZ", body)
    assert answer["data"] == {"profile": None, "error": text}


def test_variables(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["nats-server", "--pass", "s3cret"])
    data = server.ask_one(f"{PING}.EXPVARZ")["data"]
    assert list(data) == ["memstats", "cmdline"]
    assert data["cmdline"] == ["nats-server"]
    assert data["memstats"]["Sys"] > 0


@pytest.mark.parametrize(
    ("name", "wrong", "field"),
    [
        ("IPQUEUESZ", b'{"all":1}', "IpqueueszEventOptions.IpqueueszOptions.all of type bool"),
        ("RAFTZ", b'{"group":1}', "RaftzEventOptions.RaftzOptions.group of type string"),
    ],
)
def test_there_are_no_queues_and_no_raft_groups(
    server: FakeServer, name: str, wrong: bytes, field: str
) -> None:
    assert server.ask_one(f"{PING}.{name}")["data"] == {}
    text = server.ask_one(f"{PING}.{name}", wrong)["error"]["description"]
    assert text == f"json: cannot unmarshal number into Go struct field {field}"


# --- what requests make the server do -----------------------------------------------------------


@pytest.mark.parametrize("what", ["KICK", "LDM"])
def test_what_is_done_to_one_client(what: str) -> None:
    asked: list[int] = []

    def act(client_id: int) -> str:
        asked.append(client_id)
        return "" if client_id == 7 else "no such client id"

    server = FakeServer(Actions(kick=act, lame_duck=act))
    assert list(server.ask_one(f"{ME}.{what}", b'{"cid":7}')) == ["server"]
    answer = server.ask_one(f"{ME}.{what}", b'{"cid":8}')
    assert list(answer) == ["server", "error"]
    assert answer["error"] == {"code": 500, "description": "no such client id"}
    assert server.ask(f"{ME}.{what}", b'{"cid":7,"server_name":"other"}') == []
    assert server.ask(f"{ME}.{what}", b"") == []
    assert server.ask(f"{ME}.{what}", b'{"cid":"7"}') == []
    assert server.ask(f"{PING}.{what}", b'{"cid":7}') == []
    server.system_account.request(f"{ME}.{what}", b'{"cid":7}')  # without a reply: not asked
    server.clock.run()
    assert asked == [7, 8]


async def reload_answer(server: FakeServer, body: bytes = b"") -> Any:
    home = server.system_account
    home.watch("inbox")
    home.request(f"{ME}.RELOAD", body, reply=b"inbox")
    server.clock.run()
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*tasks)
    return orjson.loads(home.published[-1][2])


async def test_reload() -> None:
    done: list[bool] = []

    async def reload() -> str:
        done.append(True)
        return ""

    answer = await reload_answer(FakeServer(Actions(reload=reload)))
    assert list(answer) == ["server"]
    assert done == [True]
    answer = await reload_answer(FakeServer(Actions(reload=reload)), b"{")
    assert answer["error"]["code"] == 400
    assert done == [True]


async def test_reload_that_fails() -> None:
    async def reload() -> str:
        return "n.conf:1:1: unknown field"

    answer = await reload_answer(FakeServer(Actions(reload=reload)))
    assert answer["error"] == {"code": 500, "description": "n.conf:1:1: unknown field"}
    answer = await reload_answer(FakeServer())
    assert answer["error"]["description"] == errors.RELOAD_NO_FILE


def test_claims_and_others(server: FakeServer) -> None:
    heard: list[bytes] = []

    def update(_account: object, message: Any) -> None:
        heard.append(message.data)
        server.system.answer(message.reply, data={"code": 200})

    server.system.register("$SYS.REQ.CLAIMS.UPDATE", update)
    answer = server.ask_one("$SYS.REQ.CLAIMS.UPDATE", b"a token")
    assert heard == [b"a token"]
    assert list(answer) == ["server", "data"]
    server.system.stop()
    assert server.ask("$SYS.REQ.CLAIMS.UPDATE", b"a token") == []


def test_a_message_that_is_no_request(server: FakeServer) -> None:
    """Whatever comes without a reply subject is heard in silence."""
    for subject in list(server.system.requests.handlers()):
        publish(server.system_account.router, subject.replace("*", "A").encode(), b"{")
        server.system_account.request(subject.replace("*", "A"), b"{")
    server.clock.run()
    assert server.system_account.published == []
