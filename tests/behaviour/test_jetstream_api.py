"""JetStream's API over real connections: what survives a kill, what is refused, what is shown."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from support import Server
from support.clients.http import request

if TYPE_CHECKING:
    from conftest import StartBroker
    from support.fixtures import Connect

pytestmark = pytest.mark.only_ours

WAIT_S = 10.0


async def ask(client: Client, verb: str, body: Any = b"", prefix: str = "$JS.API") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.request(f"{prefix}.{verb}", data, timeout=WAIT_S)
    return json.loads(answer.data)


async def error(client: Client, verb: str, body: Any = b"") -> tuple[int, int, str]:
    found = (await ask(client, verb, body))["error"]
    return found["err_code"], found["code"], found["description"]


def page(server: Server, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{server.monitor}{path}") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as problem:
        return problem.code, json.load(problem)


def folder_of(server: Server, stream: str) -> Path:
    (found,) = Path(server.data).glob(f"jetstream/*/{stream}")
    return found


def nats_file(tmp_path: Path, text: str) -> dict[str, dict[str, object]]:
    path = tmp_path / "nats.conf"
    path.write_text(text)
    return {"nats": {"config_file": str(path)}}


# --- what stays ----------------------------------------------------------------------------------


async def test_streams_survive_a_kill(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    client = await connect(server)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.*"], max_msgs_per_subject=5)
    await js.add_stream(name="x" * 255, subjects=["long"])
    await js.add_stream(name="M", subjects=["m"], storage="memory")
    await js.add_stream(name="GONE", subjects=["gone"])
    for number in range(3):
        await js.publish(f"s.{number}", b"x")
    await js.delete_msg("S", 2)
    await js.delete_stream("GONE")
    created = (await js.stream_info("S")).created
    server.kill()
    server.start()
    client = await connect(server)
    js = client.jetstream()
    assert await ask(client, "STREAM.NAMES") == {
        "type": "io.nats.jetstream.api.v1.stream_names_response",
        "total": 2,
        "offset": 0,
        "limit": 1024,
        "streams": ["S", "x" * 255],
    }
    info = await js.stream_info("S")
    assert (info.created, info.config.max_msgs_per_subject) == (created, 5)
    state = info.state
    assert (state.messages, state.first_seq, state.last_seq, state.num_deleted) == (2, 1, 3, 1)
    assert (await js.publish("s.9", b"y")).seq == 4
    with pytest.raises(NotFoundError):
        await js.stream_info("GONE")


async def test_an_update_survives_a_kill(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    js = (await connect(server)).jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    await js.update_stream(name="S", subjects=["t.*"], max_msgs=3)
    server.kill()
    server.start()
    js = (await connect(server)).jetstream()
    config = (await js.stream_info("S")).config
    assert (config.subjects, config.max_msgs) == (["t.*"], 3)


async def test_a_damaged_stream_harms_no_other(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    js = (await connect(server)).jetstream()
    for name in ("BAD", "GOOD", "LATER"):
        await js.add_stream(name=name, subjects=[name])
        await js.publish(name, b"x")
    server.stop()
    (folder_of(server, "BAD") / "stream.json").write_bytes(b'{"config":{"name":"BAD"')
    path = folder_of(server, "LATER") / "stream.json"
    text = path.read_bytes().rpartition(b"\ncrc32 ")[0]
    path.write_bytes(text.replace(b'"_nats.req.level":"0"', b'"_nats.req.level":"9"'))
    server.start()
    client = await connect(server)
    assert (await client.jetstream().stream_info("GOOD")).state.messages == 1
    number, code, reason = await error(client, "STREAM.INFO.BAD")
    assert (number, code) == (10194, 500)
    assert reason.startswith("stream is offline: ")
    later = "stream is offline: unsupported - required API level: 9, current API level: 4"
    assert await error(client, "STREAM.INFO.LATER") == (10194, 500, later)
    assert sorted((await ask(client, "STREAM.LIST"))["offline"]) == ["BAD", "LATER"]
    status, health = page(server, "/healthz")
    assert (status, health["status"]) == (503, "unavailable")
    assert "could not be recovered" in health["error"]
    found = request(server.nsq_http, "GET", "/v1/health").json["problems"]
    assert {(one["kind"], one["name"]) for one in found} == {
        ("stream", "$G > BAD"),
        ("stream", "$G > LATER"),
    }
    for name in ("BAD", "LATER"):
        assert (await ask(client, f"STREAM.DELETE.{name}"))["success"]
    assert page(server, "/healthz") == (200, {"status": "ok"})
    await client.jetstream().add_stream(name="BAD", subjects=["BAD"])


# --- requests ------------------------------------------------------------------------------------


async def test_answers_come_in_the_order_of_requests(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(start_broker())
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    config = json.dumps({"name": "S", "subjects": ["s"]}).encode()
    for _ in range(10):
        await client.publish("$JS.API.STREAM.CREATE.S", config, reply=inbox)
        await client.publish("s", b"x")
        await client.publish("$JS.API.STREAM.INFO.S", reply=inbox)
        await client.publish("$JS.API.STREAM.NAMES", reply=inbox)
        await client.publish("$JS.API.STREAM.DELETE.S", reply=inbox)
    kinds = ["stream_create", "stream_info", "stream_names", "stream_delete"] * 10
    for kind in kinds:
        answer = json.loads((await answers.next_msg(WAIT_S)).data)
        assert answer["type"] == f"io.nats.jetstream.api.v1.{kind}_response"
        assert "error" not in answer


async def test_a_request_without_a_reply_is_done(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(start_broker())
    await client.publish("$JS.API.STREAM.CREATE.S", b'{"name":"S"}')
    assert (await ask(client, "STREAM.NAMES"))["streams"] == ["S"]


async def test_answers_go_only_where_the_requester_may_send(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    config = nats_file(
        tmp_path,
        """
        authorization { users: [
          { user: all, password: p }
          { user: few, password: p, permissions {
              publish: "$JS.API.>", subscribe: ["_INBOX.>", "mine.>"] } }
        ] }
        """,
    )
    server = start_broker(config)
    watcher = await connect(server, user="all", password="p")
    victim = await watcher.subscribe("orders")
    mine = await watcher.subscribe("mine.>")
    await watcher.flush()
    few = await connect(server, user="few", password="p")
    await few.publish("$JS.API.INFO", reply="orders")
    await few.publish("$JS.API.INFO", reply="mine.1")
    assert (await mine.next_msg(WAIT_S)).subject == "mine.1"
    with pytest.raises(nats.errors.TimeoutError):
        await victim.next_msg(0.05)


@pytest.mark.parametrize(
    "subject", ["USER.INFO", "ACCOUNT.PING.CONNZ", "ACCOUNT.PING.STATZ", "SERVER.PING.CONNZ"]
)
async def test_system_answers_go_only_where_the_requester_may_send(
    start_broker: StartBroker, connect: Connect, tmp_path: Path, subject: str
) -> None:
    config = nats_file(
        tmp_path,
        """
        authorization { users: [
          { user: all, password: p }
          { user: few, password: p, permissions {
              publish: { deny: ["secret.>"] }, subscribe: { deny: ["secret.>"] } } }
        ] }
        """,
    )
    server = start_broker(config)
    watcher = await connect(server, user="all", password="p")
    await watcher.jetstream().add_stream(name="SECRET", subjects=["secret.>"])
    request(server.nsq_http, "POST", "/topic/create?topic=secret.nsq")
    victim = await watcher.subscribe("secret.>")
    mine = await watcher.subscribe("mine.>")
    await watcher.flush()
    few = await connect(server, user="few", password="p")
    for reply in ("secret.x", "secret.nsq", "mine.1"):
        await few.publish(f"$SYS.REQ.{subject}", reply=reply)
    assert (await mine.next_msg(WAIT_S)).subject == "mine.1"  # requests are answered in order
    assert await few.request(f"$SYS.REQ.{subject}", timeout=WAIT_S)
    assert (await ask(watcher, "STREAM.INFO.SECRET"))["state"]["last_seq"] == 0
    with pytest.raises(nats.errors.TimeoutError):
        await victim.next_msg(0.05)


async def test_advisories(start_broker: StartBroker, connect: Connect) -> None:
    client = await connect(start_broker(), name="me")
    events = await client.subscribe("$JS.EVENT.ADVISORY.>")
    await client.flush()
    await ask(client, "STREAM.CREATE.S", {"name": "S"})
    await ask(client, "STREAM.MSG.GET.S", {"seq": 1})
    await ask(client, "STREAM.DELETE.S")

    async def event() -> tuple[str, Any]:
        found: Msg = await events.next_msg(WAIT_S)
        return found.subject.removeprefix("$JS.EVENT.ADVISORY."), json.loads(found.data)

    subject, created = await event()
    assert subject == "STREAM.CREATED.S"
    assert list(created) == ["type", "id", "timestamp", "stream", "action"]
    assert created["type"] == "io.nats.jetstream.advisory.v1.stream_action"
    assert (created["stream"], created["action"]) == ("S", "create")
    subject, audit = await event()
    assert subject == "API"
    assert (audit["subject"], audit["client"]["name"]) == ("$JS.API.STREAM.CREATE.S", "me")
    assert audit["request"] == '{"name": "S"}'
    assert json.loads(audit["response"])["did_create"] is True
    assert (await event())[1]["subject"] == "$JS.API.STREAM.MSG.GET.S"  # an error is reported
    assert (await event())[0] == "STREAM.DELETED.S"
    assert (await event())[1]["subject"] == "$JS.API.STREAM.DELETE.S"


# --- accounts and domains ------------------------------------------------------------------------

ACCOUNTS = """
accounts {
  A { users: [ { user: a, password: p } ]
      jetstream { max_streams: 1, max_file: 1000, max_mem: 500, disk_max_stream_bytes: 800 } }
  B { users: [ { user: b, password: p } ] }
  R { users: [ { user: r, password: p } ]
      jetstream { max_bytes_required: true, max_consumers: 2 } }
  SYS { users: [ { user: s, password: p } ] }
}
system_account: SYS
jetstream { domain: hub, max_file: 1500 }
"""

PURGED = """
accounts {
  A { users: [ { user: a, password: p } ], jetstream: enabled }
  SYS { users: [ { user: s, password: p } ] }
}
system_account: SYS
jetstream: enabled
"""


async def test_accounts(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    server = start_broker(nats_file(tmp_path, ACCOUNTS))
    disabled = (10039, 503, "JetStream not enabled for account")
    none = await connect(server, user="b", password="p")
    assert await error(none, "INFO") == disabled
    assert await error(none, "STREAM.CREATE.S", {"name": "S"}) == disabled
    system = await connect(server, user="s", password="p")
    assert await error(system, "INFO") == disabled
    answer = await ask(system, "STREAM.NAMES")
    assert answer["type"] == "io.nats.jetstream.api.v1.system_response"
    assert answer["error"]["err_code"] == 10039

    client = await connect(server, user="a", password="p")
    assert client._server_info["jetstream"] is True
    assert client._server_info["domain"] == "hub"
    info = await ask(client, "INFO")
    assert info["domain"] == "hub"
    assert (info["limits"]["max_streams"], info["limits"]["max_storage"]) == (1, 1000)
    large = {"name": "S", "max_bytes": 900}
    assert (await error(client, "STREAM.CREATE.S", large))[0] == 10122
    memory = {"name": "S", "max_bytes": 600, "storage": "memory"}
    assert (await error(client, "STREAM.CREATE.S", memory))[0] == 10028
    await ask(client, "STREAM.CREATE.S", {"name": "S", "max_bytes": 700})
    assert (await ask(client, "INFO"))["reserved_storage"] == 700
    assert (await error(client, "STREAM.CREATE.T", {"name": "T"}))[0] == 10027

    required = await connect(server, user="r", password="p")
    assert (await error(required, "STREAM.CREATE.R", {"name": "R"}))[0] == 10113
    many = {"name": "R", "max_bytes": 1, "max_consumers": 3}
    assert (await error(required, "STREAM.CREATE.R", many))[0] == 10026
    rest = {"name": "R", "max_bytes": 900}  # with those of A more than the server may use
    assert (await error(required, "STREAM.CREATE.R", rest))[0] == 10047

    purged = await ask(system, "ACCOUNT.PURGE.A")
    assert purged == {
        "type": "io.nats.jetstream.api.v1.account_purge_response",
        "initiated": True,
    }
    assert (await ask(client, "STREAM.NAMES"))["total"] == 0


async def test_a_stream_is_created_again_while_its_account_is_purged(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """The requests of the account do not wait for those of the system account."""
    server = start_broker(nats_file(tmp_path, PURGED))
    client = await connect(server, user="a", password="p")
    system = await connect(server, user="s", password="p")
    config = {"name": "S", "subjects": ["s.*"], "storage": "memory"}
    await ask(client, "STREAM.CREATE.S", config)
    for number in range(3000):  # that end in several turns
        consumer = {"durable_name": f"c{number}", "ack_policy": "explicit"}
        body = json.dumps({"stream_name": "S", "config": consumer}).encode()
        await client.publish(f"$JS.API.CONSUMER.DURABLE.CREATE.S.c{number}", body)
    js = client.jetstream()
    assert (await js.stream_info("S")).state.consumer_count == 3000
    purge = asyncio.create_task(ask(system, "ACCOUNT.PURGE.A"))
    config["subjects"] = ["s.>"]
    while "error" in await ask(client, "STREAM.CREATE.S", config):
        pass  # the purge has not begun
    assert "error" not in await purge
    assert (await js.publish("s.new", b"")).seq == 1
    assert (await js.stream_info("S")).state.messages == 1


async def test_a_reload_changes_accounts(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    server = start_broker(nats_file(tmp_path, ACCOUNTS))
    client = await connect(server, user="a", password="p")
    await ask(client, "STREAM.CREATE.S", {"name": "S"})
    assert (await error(client, "STREAM.CREATE.T", {"name": "T"}))[0] == 10027
    text = ACCOUNTS.replace("max_streams: 1", "max_streams: 2").replace(
        "  B {", "  N { users: [ { user: n, password: p } ], jetstream: enabled }\n  B {"
    )
    nats_file(tmp_path, text)
    marks = server.log_marks()
    server.signal(signal.SIGHUP)
    while "Reloaded: accounts" not in server.log_since(marks):
        await client.flush()
    await ask(client, "STREAM.CREATE.T", {"name": "T"})
    assert (await ask(client, "INFO"))["limits"]["max_streams"] == 2
    other = await connect(server, user="n", password="p")
    await ask(other, "STREAM.CREATE.S", {"name": "S"})
    assert (await ask(other, "INFO"))["streams"] == 1


async def test_an_account_stores_no_more_than_its_limit(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    server = start_broker(nats_file(tmp_path, ACCOUNTS))
    client = await connect(server, user="a", password="p")
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    for _ in range(6):
        await js.publish("s", b"x" * 100)  # 131 bytes each
    refused = json.loads((await client.request("s", b"x" * 200, timeout=WAIT_S)).data)
    assert refused["error"] == {
        "code": 400,
        "err_code": 10002,
        "description": "resource limits exceeded for account",
    }
    assert (await js.publish("s", b"x" * 100)).seq == 7
    await js.purge_stream("S")
    assert (await js.publish("s", b"x" * 200)).seq == 8


async def test_a_domain_is_a_second_name_of_the_api(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(start_broker({"jetstream": {"domain": "hub"}}))
    await client.jetstream(domain="hub").add_stream(name="S", subjects=["s"])
    names = await ask(client, "STREAM.NAMES", prefix="$JS.hub.API")
    assert names == await ask(client, "STREAM.NAMES")
    assert (await client.jetstream().publish("s", b"x")).domain == "hub"
    assert (await ask(client, "STREAM.INFO.S"))["domain"] == "hub"


async def test_a_bucket_has_a_second_name_by_its_domain_only(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(start_broker({"jetstream": {"domain": "hub"}}))
    await client.jetstream().create_key_value(bucket="b")
    answer = json.loads((await client.request("$JS.hub.API.$KV.b.k", b"v", timeout=WAIT_S)).data)
    assert (answer["stream"], answer["seq"]) == ("KV_b", 1)
    # without the domain it would be a way around what a client may publish to
    await client.publish("$JS.API.$KV.b.k", b"v")
    assert (await ask(client, "STREAM.INFO.KV_b"))["state"]["messages"] == 1
    with pytest.raises(nats.errors.NoRespondersError):
        await ask(client, "INFO", prefix="$JS.other.API")


async def test_without_jetstream_nobody_answers(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker({"jetstream": {"enabled": False}})
    client = await connect(server)
    assert "jetstream" not in client._server_info
    with pytest.raises(nats.errors.NoRespondersError):
        await ask(client, "INFO")
    assert page(server, "/varz")[1]["jetstream"] == {}
    assert page(server, "/jsz")[1]["disabled"] is True
    assert page(server, "/healthz?js-enabled-only=true") == (200, {"status": "ok"})


async def test_unknown_fields_are_ignored_if_not_strict(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(start_broker({"jetstream": {"strict": False}}))
    assert (await ask(client, "STREAM.CREATE.S", {"name": "S", "odd": 1}))["did_create"]


# --- monitoring ----------------------------------------------------------------------------------


async def test_pages_of_many_subjects(start_broker: StartBroker, connect: Connect) -> None:
    """More subjects than are copied, or encoded, at a time: the others are listed in parts."""
    client = await connect(start_broker())
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.>", "t.*"])
    for number in range(2 * 8192):
        await client.publish(f"s.{number % 3}.<{number}>", b"x")
    await js.publish("t.1", b"x")
    names = sorted(f"s.{number % 3}.<{number}>" for number in range(2 * 8192))
    for pattern, offset, wanted in (
        ("s.>", 0, names),
        (">", 5000, [*names, "t.1"][5000:]),
        ("s.1.*", 3, [name for name in names if name.startswith("s.1.")][3:]),
        ("t.*", 1, []),
    ):
        found = await ask(client, "STREAM.INFO.S", {"subjects_filter": pattern, "offset": offset})
        assert list(found["state"].get("subjects", {})) == wanted
        assert (found["offset"], found["limit"]) == (offset, 100_000)
        assert found["total"] == offset + len(wanted)


async def test_streams_are_no_topics(start_broker: StartBroker, connect: Connect) -> None:
    """NSQ and the console would otherwise list them, and could empty them."""
    server = start_broker()
    js = (await connect(server)).jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    await js.publish("s.1", b"x")
    server.restart()
    lists = {"nsq_http": "/stats?format=json", "console": "/v1/topics"}
    for listener, path in lists.items():
        listed = request(server.addresses[listener], "GET", path).json
        assert listed["topics"] == [], listener
    assert b"js.$G" not in request(server.monitor, "GET", "/metrics").body
    js = (await connect(server)).jetstream()
    assert (await js.get_msg("S", 1)).data == b"x"


async def test_monitoring(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    js = (await connect(server)).jetstream()
    await js.add_stream(name="S", subjects=["s.*"], max_bytes=1_000_000)
    await js.publish("s.1", b"x")
    await js.add_consumer("S", durable_name="C", ack_policy="explicit")

    stats = page(server, "/varz")[1]["jetstream"]["stats"]
    assert (stats["storage"], stats["reserved_storage"], stats["accounts"]) == (34, 1_000_000, 1)
    assert stats["api"]["total"] == 2

    totals = page(server, "/jsz")[1]
    counts = [totals[key] for key in ("streams", "consumers", "messages", "bytes", "total")]
    assert counts == [1, 1, 1, 34, 1]
    assert "account_details" not in totals
    (account,) = page(server, "/jsz?consumers=true&config=true")[1]["account_details"]
    assert (account["name"], account["reserved_storage"]) == ("$G", 2**64 - 1)
    (stream,) = account["stream_detail"]
    assert (stream["name"], stream["config"]["max_bytes"]) == ("S", 1_000_000)
    assert stream["state"]["messages"] == 1
    assert stream["cluster"]["leader"]
    (consumer,) = stream["consumer_detail"]
    assert (consumer["name"], consumer["num_pending"]) == ("C", 1)
    assert "cluster" not in consumer
    assert "account_details" not in page(server, "/jsz?acc=NOPE")[1]
    leading = {"streams_leader", "consumers_leader"}
    assert not leading & page(server, "/jsz?consumers=true")[1].keys()
    groups = page(server, "/jsz?raft=true")[1]
    assert [groups[key] for key in sorted(leading)] == [1, 1]
    detail = page(server, "/accountz?acc=$G")[1]["account_detail"]
    assert detail["jetstream_enabled"] is True
    (api,) = (it for it in detail["imports"] if it["subject"] == "$JS.API.>")
    assert (api["account"], api["to"], api["type"]) == ("$SYS", "$JS.API.>", "service")
    assert api["share"]
    exports = page(server, "/accountz?acc=$SYS")[1]["account_detail"]["exports"]
    assert "$JS.API.>" in [it["subject"] for it in exports]


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("account=$G&stream=S&consumer=C", 200, None),
        ("account=NOPE", 404, 'JetStream account "NOPE" not found'),
        ("account=$G&stream=X", 404, 'JetStream stream "X" not found on account "$G"'),
        (
            "account=$G&stream=S&consumer=X",
            404,
            'JetStream consumer "X" not found for stream "S" on account "$G"',
        ),
    ],
)
async def test_health_of_parts(
    start_broker: StartBroker, connect: Connect, query: str, status: int, text: str | None
) -> None:
    server = start_broker()
    js = (await connect(server)).jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    await js.add_consumer("S", durable_name="C", ack_policy="explicit")
    found, health = page(server, f"/healthz?{query}")
    assert (found, health.get("error")) == (status, text)
