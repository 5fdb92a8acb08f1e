"""Configurations of JetStream with the largest numbers that Go's types hold: nats-server accepts
them, they harm nobody, and the broker starts again."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from support import Server
from support.console import console
from support.loops import on_uvloop

from broker.base.durable import save, unsealed
from broker.base.units import DAY, INT64_MAX, SECOND
from broker.protocols.jetstream import account
from broker.protocols.jetstream.consumers import registry
from broker.protocols.jetstream.limits import JS_SEQ_MAX

if TYPE_CHECKING:
    from conftest import StartBroker
    from support.fixtures import Connect

pytestmark = pytest.mark.only_ours

WAIT_S = 10.0
UINT64_MAX = 2**64 - 1
LATE = "9999-12-31T23:59:59Z"
AFTER_2262 = "2300-01-01T00:00:00Z"
EARLY = "0001-01-02T00:00:00Z"
RANGE = "invalid JSON: json: cannot unmarshal number {} into Go struct field {} of type {}"

CONSUMERS: dict[str, dict[str, Any]] = {
    "max_ack_pending": {"max_ack_pending": 2**32},
    "max_deliver": {"max_deliver": INT64_MAX},
    "max_waiting": {"max_waiting": INT64_MAX},
    "max_batch": {"max_batch": INT64_MAX},
    "max_bytes": {"max_bytes": INT64_MAX},
    "max_expires": {"max_expires": INT64_MAX},
    "ack_wait": {"ack_wait": INT64_MAX},
    "backoff": {"backoff": [INT64_MAX], "max_deliver": 5},
    "inactive_threshold": {"inactive_threshold": INT64_MAX},
    "rate_limit_bps": {"rate_limit_bps": UINT64_MAX, "deliver_subject": "to.rate"},
    "idle_heartbeat": {"idle_heartbeat": INT64_MAX, "deliver_subject": "to.beat"},
    "opt_start_seq": {"deliver_policy": "by_start_sequence", "opt_start_seq": UINT64_MAX},
    "late": {"deliver_policy": "by_start_time", "opt_start_time": LATE},
    "early": {"deliver_policy": "by_start_time", "opt_start_time": EARLY},
    "pause_until": {"pause_until": AFTER_2262},
    "pause_late": {"pause_until": LATE},
    "pause_early": {"pause_until": EARLY},
    "priority_timeout": {
        "priority_policy": "pinned_client",
        "priority_groups": ["a"],
        "priority_timeout": INT64_MAX,
    },
    "sample_freq": {"sample_freq": "1000%"},
}
STREAMS: dict[str, dict[str, Any]] = {
    "max_age": {"max_age": INT64_MAX},
    "duplicate_window": {"duplicate_window": INT64_MAX},
    "max_msgs": {"max_msgs": INT64_MAX},
    "max_msgs_per_subject": {"max_msgs_per_subject": INT64_MAX},
    "max_consumers": {"max_consumers": INT64_MAX},
    "max_msg_size": {"max_msg_size": 2**31 - 1},
    "marker_ttl": {"subject_delete_marker_ttl": INT64_MAX},
    "consumer_limits": {
        "consumer_limits": {"inactive_threshold": INT64_MAX, "max_ack_pending": INT64_MAX}
    },
    "source_seq": {"sources": [{"name": "NONE", "opt_start_seq": UINT64_MAX}]},
    "source_time": {"sources": [{"name": "NONE", "opt_start_time": LATE}]},
    "first_seq": {"first_seq": JS_SEQ_MAX},
}


async def ask(client: Client, verb: str, body: Any = b"") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads((await client.request(f"$JS.API.{verb}", data, timeout=WAIT_S)).data)


async def change(client: Client, name: str, config: dict[str, Any], action: str = "") -> Any:
    """Create or update a durable of the stream S."""
    config = {"durable_name": name, "ack_policy": "explicit", **config}
    body = {"stream_name": "S", "config": config, "action": action}
    return await ask(client, f"CONSUMER.CREATE.S.{name}", body)


async def stream(client: Client, name: str, **config: Any) -> Any:
    subjects = [f"{name.lower()}.>"]
    return await ask(
        client, f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **config}
    )


async def publish(client: Client, subject: str) -> int:
    answer = json.loads((await client.request(subject, b"x", timeout=WAIT_S)).data)
    return int(answer["seq"])


async def pull(client: Client, name: str, **fields: Any) -> Msg:
    """What a consumer of S answers to a request for one message."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    body = json.dumps({"batch": 1, **fields}).encode()
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", body, reply=inbox)
    message = await subscription.next_msg(WAIT_S)
    await subscription.unsubscribe()
    return message


async def take(client: Client, name: str) -> Msg:
    """The next message of a consumer of S; it is acknowledged, and that is confirmed."""
    message = await pull(client, name, expires=5 * SECOND)
    await client.request(message.reply, b"+ACK", timeout=WAIT_S)
    return message


def without_metadata(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "metadata"}


# --- consumers -----------------------------------------------------------------------------------


async def test_consumers_take_the_largest_numbers(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "S")
    shown = {}
    for name, config in CONSUMERS.items():
        answer = await change(client, name, config, "create")
        assert "error" not in answer, (name, answer)
        shown[name] = without_metadata(answer["config"])
        assert {key: answer["config"][key] for key in config} == config
    server.kill()
    server.start()
    client = await connect(server)
    for name, config in shown.items():
        info = await ask(client, f"CONSUMER.INFO.S.{name}")
        assert without_metadata(info["config"]) == config, name


@pytest.mark.parametrize("name", ["max_deliver", "max_ack_pending", "ack_wait", "backoff", "late"])
async def test_consumers_with_the_largest_numbers_deliver(
    start_broker: StartBroker, connect: Connect, name: str
) -> None:
    """In particular nothing is delivered again at once, because a time has overflowed."""
    client = await connect(start_broker())
    await stream(client, "S")
    await change(client, name, CONSUMERS[name], "create")
    await publish(client, "s.1")
    assert (await pull(client, name)).subject == "s.1"
    answer = await pull(client, name, no_wait=True)
    assert (answer.headers or {})["Status"] == "404"


async def test_a_nak_may_delay_for_ever(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "S")
    await change(client, "c", {})
    await publish(client, "s.1")
    await publish(client, "s.2")
    first = await pull(client, "c")
    delay = json.dumps({"delay": INT64_MAX}).encode()
    await client.request(first.reply, b"-NAK " + delay, timeout=WAIT_S)
    assert (await take(client, "c")).subject == "s.2"
    server.kill()
    server.start()
    client = await connect(server)
    answer = await pull(client, "c", no_wait=True)
    assert (answer.headers or {})["Status"] == "404"  # the journal says both


@pytest.mark.parametrize("until", [AFTER_2262, LATE])
async def test_a_pause_may_last_for_ever(
    start_broker: StartBroker, connect: Connect, until: str
) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "S")
    await change(client, "c", {})
    answer = await ask(client, "CONSUMER.PAUSE.S.c", {"pause_until": until})
    assert (answer["paused"], answer["pause_until"]) == (True, until)
    assert 200 * 365 * DAY < answer["pause_remaining"] <= INT64_MAX
    server.stop()
    server.start()
    client = await connect(server)
    info = await ask(client, "CONSUMER.INFO.S.c")
    assert (info["paused"], info["config"]["pause_until"]) == (True, until)
    assert 200 * 365 * DAY < info["pause_remaining"] <= INT64_MAX
    assert not (await ask(client, "CONSUMER.PAUSE.S.c", {}))["paused"]


@pytest.mark.parametrize("config", [{"max_deliver": 2**40}, {"max_ack_pending": INT64_MAX}])
async def test_updates_take_the_largest_numbers(
    start_broker: StartBroker, connect: Connect, config: dict[str, Any]
) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "S")
    await change(client, "c", {})
    answer = await change(client, "c", config, "update")
    assert {key: answer["config"][key] for key in config} == config
    server.stop()
    server.start()
    info = await ask(await connect(server), "CONSUMER.INFO.S.c")
    assert {key: info["config"][key] for key in config} == config


# --- streams -------------------------------------------------------------------------------------


async def test_streams_take_the_largest_numbers(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker()
    client = await connect(server)
    for name, config in STREAMS.items():
        answer = await stream(client, name, **config)
        assert "error" not in answer, (name, answer)
        assert {key: answer["config"][key] for key in config} == config
        updated = {**answer["config"], "description": "updated"}
        assert "error" not in await ask(client, f"STREAM.UPDATE.{name}", updated)
        await publish(client, f"{name}.1")
    server.kill()
    server.start()
    client = await connect(server)
    for name, config in STREAMS.items():
        info = await ask(client, f"STREAM.INFO.{name}")
        assert {key: info["config"][key] for key in config} == config
        assert info["state"]["messages"] == 1, name


async def test_a_message_may_live_for_ever(start_broker: StartBroker, connect: Connect) -> None:
    client = await connect(start_broker())
    await stream(client, "S", allow_msg_ttl=True)
    for ttl in ("9000000000", "never"):
        await client.request("s.1", b"x", timeout=WAIT_S, headers={"Nats-TTL": ttl})
    assert (await ask(client, "STREAM.INFO.S"))["state"]["messages"] == 2


# --- sequences -----------------------------------------------------------------------------------


async def test_a_stream_begins_where_its_log_has_room(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker()
    client = await connect(server)
    for seq in (JS_SEQ_MAX + 1, 2**62, 2**63, UINT64_MAX):
        answer = await stream(client, "S", first_seq=seq)
        text = f"first sequence must not be above {JS_SEQ_MAX}"
        assert answer["error"] == {"code": 500, "err_code": 10052, "description": text}
        assert (await ask(client, "STREAM.NAMES"))["total"] == 0
    await stream(client, "S", first_seq=JS_SEQ_MAX)
    await change(client, "c", {})
    assert [await publish(client, "s.1") for _ in range(2)] == [JS_SEQ_MAX, JS_SEQ_MAX + 1]
    await take(client, "c")
    await stays(server, connect, JS_SEQ_MAX, JS_SEQ_MAX + 1)


async def stays(server: Server, connect: Connect, floor: int, last: int) -> None:
    """The ack floor of the consumer c of S survives kills, and so does the last message."""
    for _ in range(2):
        server.kill()
        server.start()
        client = await connect(server)
        info = await ask(client, "CONSUMER.INFO.S.c")
        assert info["ack_floor"]["stream_seq"] == floor
        assert (await ask(client, "STREAM.INFO.S"))["state"]["last_seq"] == last
        assert "does not read" not in server.log_since()


@pytest.mark.parametrize("seq", [2**62, UINT64_MAX])
async def test_a_purge_goes_as_far_as_a_log_has_room(
    start_broker: StartBroker, connect: Connect, seq: int
) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "S")
    await change(client, "c", {})
    await publish(client, "s.1")
    assert (await ask(client, "STREAM.PURGE.S", {"seq": seq}))["purged"] == 1
    assert [await publish(client, "s.1") for _ in range(2)] == [JS_SEQ_MAX, JS_SEQ_MAX + 1]
    await take(client, "c")
    await stays(server, connect, JS_SEQ_MAX, JS_SEQ_MAX + 1)


@pytest.mark.parametrize("how", ["opt_start_seq", "reset"])
async def test_a_consumer_begins_where_a_log_has_room(
    start_broker: StartBroker, connect: Connect, how: str
) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "S")
    await publish(client, "s.1")
    if how == "reset":
        await change(client, "c", {})
        answer = await ask(client, "CONSUMER.RESET.S.c", {"seq": UINT64_MAX})
        assert answer["reset_seq"] == JS_SEQ_MAX
    else:
        answer = await change(client, "c", CONSUMERS[how])
    assert answer["ack_floor"]["stream_seq"] == JS_SEQ_MAX - 1
    await stays(server, connect, JS_SEQ_MAX - 1, 1)


# --- numbers that Go's types do not hold ---------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "field"),
    [
        ("CONSUMER.RESET.S.c", "JSApiConsumerResetRequest.seq"),
        ("STREAM.PURGE.S", "JSApiStreamPurgeRequest.seq"),
        ("STREAM.MSG.GET.S", "JSApiMsgGetRequest.seq"),
        ("STREAM.MSG.DELETE.S", "JSApiMsgDeleteRequest.seq"),
    ],
)
async def test_a_sequence_beyond_64_bits_is_no_json(
    start_broker: StartBroker, connect: Connect, verb: str, field: str
) -> None:
    client = await connect(start_broker())
    await stream(client, "S")
    await change(client, "c", {})
    error = (await ask(client, verb, {"seq": 2**64}))["error"]
    assert error == {
        "code": 400,
        "err_code": 10025,
        "description": RANGE.format(2**64, field, "uint64"),
    }


async def test_a_message_is_asked_for_by_any_time(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(start_broker())
    await stream(client, "S", allow_direct=True)
    await publish(client, "s.1")
    for until, found in ((LATE, None), (EARLY, 1)):
        body = {"start_time": until, "next_by_subj": "s.1"}
        answer = await ask(client, "STREAM.MSG.GET.S", body)
        assert answer.get("message", {}).get("seq") == found
        data = json.dumps(body).encode()
        direct = await client.request("$JS.API.DIRECT.GET.S", data, timeout=WAIT_S)
        assert (direct.headers or {}).get("Nats-Sequence") == (found and str(found))
    data = json.dumps({"multi_last": ["s.>"], "up_to_time": LATE}).encode()
    direct = await client.request("$JS.API.DIRECT.GET.S", data, timeout=WAIT_S)
    assert (direct.headers or {})["Nats-Sequence"] == "1"


# --- whatever fails ------------------------------------------------------------------------------


def break_files(server: Server, pattern: str, **config: Any) -> None:
    """Write these values into the configurations that are stored, as an older version may have."""
    (path,) = Path(server.data).glob(pattern)
    stored = json.loads(unsealed(path.read_bytes()))
    stored["config"].update(config)
    save(path, json.dumps(stored).encode())


async def refusal(client: Client, verb: str, body: Any) -> str:
    return str((await ask(client, verb, body))["error"]["description"])


@on_uvloop
async def test_nothing_stays_of_what_cannot_be_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason is: here the parts of the server fail."""

    def fail(*_: object) -> NoReturn:
        raise RuntimeError("it fails")

    async with console(tmp_path) as broker:
        host, port = broker.server.ports["nats"]
        client = await nats.connect(f"nats://{host}:{port}")
        await stream(client, "S")
        await change(client, "c", {"max_deliver": 5})
        before = stored(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(registry, "settings_of", fail)
            body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
            assert await refusal(client, "CONSUMER.CREATE.S.c", body) == "it fails"
            body["config"] = {"durable_name": "d"}
            assert await refusal(client, "CONSUMER.CREATE.S.d", body) == "it fails"
        with monkeypatch.context() as patch:
            patch.setattr(registry, "moment_ns", fail)
            body = {"pause_until": AFTER_2262}
            assert await refusal(client, "CONSUMER.PAUSE.S.c", body) == "it fails"
        with monkeypatch.context() as patch:
            patch.setattr(account, "limits_of", fail)
            body = {"name": "S", "subjects": ["s.>"], "max_msgs": 7}
            assert await refusal(client, "STREAM.UPDATE.S", body) == "it fails"
            body = {"name": "T", "subjects": ["t.>"]}
            assert await refusal(client, "STREAM.CREATE.T", body) == "it fails"
        assert stored(tmp_path) == before
        assert (await ask(client, "STREAM.NAMES"))["streams"] == ["S"]
        assert (await ask(client, "CONSUMER.NAMES.S"))["consumers"] == ["c"]
        info = await ask(client, "CONSUMER.INFO.S.c")
        assert info["config"]["max_deliver"] == 5
        assert "pause_until" not in info["config"]
        assert (await ask(client, "STREAM.INFO.S"))["config"]["max_msgs"] == -1
        assert "error" not in await change(client, "d", {})
        assert "error" not in await stream(client, "T")
        await client.close()


@on_uvloop
async def test_a_consumer_that_is_not_created_takes_no_messages_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also none that no consumer is for, and that came while the stream kept everything."""

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with console(tmp_path) as broker:
        host, port = broker.server.ports["nats"]
        client = await nats.connect(f"nats://{host}:{port}")
        await stream(client, "S")
        await change(client, "c", {"filter_subject": "s.a"})
        for subject in ("s.a", "s.b", "s.b"):
            await publish(client, subject)
        config = (await ask(client, "STREAM.INFO.S"))["config"] | {"retention": "interest"}
        assert (await ask(client, "STREAM.UPDATE.S", config))["state"]["messages"] == 3
        with monkeypatch.context() as patch:
            patch.setattr(registry, "moment_ns", full)  # the last step, after it was made
            body = {"durable_name": "d", "ack_policy": "explicit", "filter_subject": "s.z"}
            body["pause_until"] = AFTER_2262
            whole = {"stream_name": "S", "config": body}
            assert "No space" in await refusal(client, "CONSUMER.CREATE.S.d.s.z", whole)
        assert "No space" in caplog.text
        assert "Traceback" not in caplog.text
        # what is swept goes some messages in a turn: publishes take several of them
        for _ in range(20):
            await publish(client, "s.a")
        assert (await ask(client, "STREAM.INFO.S"))["state"]["messages"] == 23
        assert (await ask(client, "CONSUMER.NAMES.S"))["consumers"] == ["c"]
        await client.close()


async def test_a_consumer_that_is_offline_is_not_created_again(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "S")
    await publish(client, "s.1")
    await change(client, "c", {})
    server.stop()
    break_files(server, "jetstream/*/S/consumers/c.json", metadata={"_nats.req.level": "99"})
    before = consumer_files(server)
    server.start()
    client = await connect(server)
    body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    answer = await ask(client, "CONSUMER.CREATE.S.c", body)
    assert answer["error"]["err_code"] == 10195
    assert consumer_files(server) == before


def consumer_files(server: Server) -> dict[str, bytes]:
    folder = Path(server.data)
    return {path.name: path.read_bytes() for path in folder.rglob("consumers/c.*")}


def stored(folder: Path) -> dict[str, bytes]:
    """The configurations on the disk."""
    return {path.name: path.read_bytes() for path in folder.rglob("jetstream/**/*.json")}


async def test_one_consumer_does_not_stop_the_start(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "S")
    await publish(client, "s.1")
    await change(client, "bad", {})
    await change(client, "good", {})
    server.stop()
    bad = {"rate_limit_bps": 2**70, "deliver_subject": "to.bad"}
    break_files(server, "jetstream/*/S/consumers/bad.json", **bad)
    server.start()
    client = await connect(server)
    assert (await take(client, "good")).subject == "s.1"
    assert (await ask(client, "CONSUMER.INFO.S.bad"))["error"]["err_code"] == 10195


async def test_one_stream_does_not_stop_the_start(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker()
    client = await connect(server)
    await stream(client, "BAD")
    await stream(client, "GOOD")
    server.stop()
    bad = [{"name": "X", "opt_start_seq": 2**70}]
    break_files(server, "jetstream/*/BAD/stream.json", sources=bad)
    server.start()
    client = await connect(server)
    assert await publish(client, "good.1") == 1
    assert (await ask(client, "STREAM.INFO.BAD"))["error"]["err_code"] == 10194
