"""`twinwire.testing.Broker` as a user's tests use it, with real clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import nats
import nsq as pynsq
import pytest
from support.servers.processes import Address
from support.stan.client import StanClient

from twinwire import nsq
from twinwire.testing import Broker, BrokerError

WAIT_S = 30.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def post(broker: Broker, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = HTTPConnection(broker.nsqd_http_address, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def healthy(broker: Broker) -> int:
    connection = HTTPConnection(broker.address("monitor"), timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request("GET", "/healthz")
        return connection.getresponse().status


def awaited_end(pid: int) -> None:
    """Wait until a process that is not a child of this one has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([fd], [], [], WAIT_S)
    os.close(fd)
    assert ready, f"{pid} still runs"


class _Stan:
    """A broker as our small STAN client wants it."""

    def __init__(self, broker: Broker) -> None:
        self.nats = Address.parse(broker.address("nats"))


# --- every listener


async def test_real_clients_of_each_protocol(shared: Broker, uniq: str) -> None:
    client = await nats.connect(shared.nats_url)
    subscription = await client.subscribe(uniq)
    await client.flush()
    async with nsq.Writer(shared.nsqd_tcp_address) as writer:
        await writer.publish(uniq, b"from nsq")
    message = await subscription.next_msg(WAIT_S)
    assert message.data == b"from nsq"
    await client.close()


async def test_pynsq(shared: Broker, uniq: str) -> None:
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(message: pynsq.Message) -> bool:
        if not got.done():
            got.set_result(message.body)
        return True

    reader = pynsq.Reader(
        uniq, "ch", message_handler=take, nsqd_tcp_addresses=[shared.nsqd_tcp_address]
    )
    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")
    assert await asyncio.wait_for(got, WAIT_S) == b"x"
    reader.close()


def test_nats_streaming(shared: Broker, uniq: str) -> None:
    with StanClient(_Stan(shared), uniq) as client:  # type: ignore[arg-type]
        assert client.publish(f"s.{uniq}", b"1") == ""


def test_pages_and_bulk(shared: Broker, uniq: str) -> None:
    from twinwire import bulk

    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")
    assert healthy(shared) == 200
    with bulk.Connection(shared.bulk_address) as connection:
        assert connection.topics([uniq]).find(uniq) is not None
    assert shared.monitor_url == f"http://{shared.address('monitor')}"


# --- its life


def test_ports_and_data_survive(tmp_path: Path, uniq: str) -> None:
    with Broker({"storage": {"sync": "always"}}, folder=tmp_path / "own") as broker:
        addresses = {name: broker.address(name) for name in ("nats", "nsq", "nsq_http", "monitor")}
        pids = [broker.pid]
        assert post(broker, f"/pub?topic={uniq}", b"x") == (200, b"OK")
        for end in (broker.kill, broker.stop, broker.restart):
            end()
            if not broker.is_running:
                with pytest.raises(BrokerError, match="not running"):
                    _ = broker.pid
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(Address.parse(broker.nsqd_tcp_address)).close()
                broker.start()
            pids.append(broker.pid)
            assert {name: broker.address(name) for name in addresses} == addresses
        assert len(set(pids)) == 4
        status, body = _stats(broker, uniq)
        assert (status, json.loads(body)["topics"][0]["depth"]) == (200, 1)
        assert "last_stop=unclean" in broker.logs
    assert not broker.is_running
    assert (tmp_path / "own" / "data" / "logs" / uniq).is_dir()


def _stats(broker: Broker, topic: str) -> tuple[int, bytes]:
    connection = HTTPConnection(broker.nsqd_http_address, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request("GET", f"/stats?format=json&topic={topic}")
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_temporary_folder_is_removed() -> None:
    broker = Broker()
    with pytest.raises(BrokerError, match="no folder"):
        _ = broker.folder
    with broker:
        folder = broker.folder
        assert folder.is_dir()
    assert not folder.exists()


async def test_as_an_async_context() -> None:
    async with Broker() as broker:
        assert await asyncio.to_thread(healthy, broker) == 200
    assert not broker.is_running


def test_several_at_once() -> None:
    with Broker() as one, Broker() as other:
        assert one.nats_url != other.nats_url
        assert post(one, "/pub?topic=t", b"x") == (200, b"OK")
        assert (_stats(other, "t")[1]).count(b'"topic_name"') == 0


def test_other_ports_if_a_reserved_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Broker._reserve
    with contextlib.ExitStack() as taken:

        def reserve_and_take(broker: Broker) -> None:
            reserve(broker)
            if not ports:
                ports.append(broker._reserved["nsq"].getsockname()[1])
                one = taken.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("127.0.0.1", ports[0]))
                one.listen()

        ports: list[int] = []
        monkeypatch.setattr(Broker, "_reserve", reserve_and_take)
        with Broker() as broker:
            assert not broker.nsqd_tcp_address.endswith(f":{ports[0]}")
            assert post(broker, "/topic/create?topic=a")[0] == 200


def test_a_broker_that_does_not_start_says_why() -> None:
    with pytest.raises(BrokerError, match=r"(?s)ended with 2.*max_paylod"):
        Broker({"nats": {"max_paylod": 3}}).start()
    with pytest.raises(BrokerError, match="ended with 2"), Broker({"nats": {"max_payload": "x"}}):
        pass
    with pytest.raises(TypeError, match="cannot contain"):
        Broker({"nats": {"max_payload": object()}})
    with pytest.raises(TypeError, match=r"config\['nats'\] must be a mapping"):
        Broker({"nats": 3})  # type: ignore[dict-item]


def test_settings_of_every_kind() -> None:
    from twinwire.testing.settings import toml

    text = toml({
        "log": {"level": "debug", "utc": True},
        "nats": {"max_connections": 7},
        "http": {"allowed_hosts": ["a.example", 'ä\n"quoted"']},
        "server": {"data": Path("/tmp/x y")},
        "stan": {"enabled": False},
        "storage": {"topics": [{"pattern": "a.*", "sync": "always"}]},
    })  # fmt: skip
    assert "[stan]\nenabled = false" in text
    assert '{ pattern = "a.*", sync = "always" }' in text
    assert tomllib.loads(text)["http"]["allowed_hosts"][1] == 'ä\n"quoted"'


def test_settings_of_the_environment_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINWIRE_NATS_NONSENSE", "1")
    monkeypatch.setenv("TWINWIRE_STAN_ENABLED", "false")
    with Broker() as broker:
        assert healthy(broker) == 200


def test_its_log(shared: Broker) -> None:
    assert "ready" in shared.wait_for_log("twinwire 0")
    assert "ready" in shared.logs
    with pytest.raises(BrokerError, match="no 'nothing like it' in the log"):
        shared.wait_for_log("nothing like it", timeout_s=0.01)


def test_pausing(shared: Broker) -> None:
    """A paused broker accepts no commands, and its clients wait."""
    with socket.create_connection(Address.parse(shared.address("nats"))) as client:
        assert client.recv(4096).startswith(b"INFO")
        shared.pause()
        state = Path(f"/proc/{shared.pid}/stat").read_text().rpartition(")")[2].split()[0]
        client.sendall(b"PING\r\n")
        shared.resume()
        assert state == "T"
        client.settimeout(WAIT_S)
        assert client.recv(4096) == b"PONG\r\n"


# --- the end of the test's process

RUNNER = """
import sys, threading
from twinwire.testing import Broker
broker = Broker()
thread = threading.Thread(target=broker.start)   # it ends, and the broker must not end with it
thread.start(); thread.join()
print(broker.pid, flush=True)
{}
sys.stdin.read()
"""


@pytest.mark.parametrize("forked", [False, True])
def test_no_process_is_left_behind(forked: bool) -> None:
    """The test's process is killed, also one with a child that has inherited its files."""
    more = "import os\nif os.fork() == 0: sys.stdin.read(); os._exit(0)" if forked else ""
    pipe = subprocess.PIPE
    runner = subprocess.Popen([sys.executable, "-c", RUNNER.format(more)], stdin=pipe, stdout=pipe)
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    os.kill(pid, 0)
    runner.kill()
    runner.wait()
    awaited_end(pid)
    runner.communicate()


def test_ctrl_c_is_for_the_test(shared: Broker) -> None:
    assert os.getpgid(shared.pid) != os.getpgid(0)
    assert os.getsid(shared.pid) != os.getsid(0)


def test_the_process_does_not_run_without_a_test(tmp_path: Path) -> None:
    """Its faults cannot be switched on from outside: there is only the inherited socket."""
    command = [sys.executable, "-c", "from twinwire.testing.process import main; main()"]
    for arguments in ([], ["0", "1"], ["77", str(os.getpid())]):
        done = subprocess.run(
            [*command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        assert done.returncode == 1
        assert b"Error" in done.stderr
    lines = "import sys; import broker.cli.serve, broker.server.server; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", lines], capture_output=True, check=True).stdout
    assert [name for name in found.split() if name.split(b".")[0] == b"twinwire"] == []


# --- faults


async def test_a_full_disk(shared: Broker, uniq: str) -> None:
    async with nsq.Writer(shared.nsqd_tcp_address) as writer:
        await writer.publish(uniq, b"before")
        # a new channel would need a file of its own
        await asyncio.to_thread(post, shared, f"/channel/create?topic={uniq}&channel=c")
        with shared.faults.full_disk() as fault:
            assert shared.faults.active == ("full_disk",)
            with pytest.raises(nsq.ServerError) as caught:
                await writer.publish(uniq, b"refused")
            assert caught.value.code == "E_PUB_FAILED"
            assert await asyncio.to_thread(healthy, shared) == 503
            assert (await asyncio.to_thread(post, shared, f"/pub?topic={uniq}new", b"x"))[0] == 503
            made = await asyncio.to_thread(post, shared, f"/topic/create?topic={uniq}new")
            assert made[0] == 200  # its files are small ones
            path = f"/channel/create?topic={uniq}&channel=other"
            assert (await asyncio.to_thread(post, shared, path))[0] == 503
            got: asyncio.Queue[bytes] = asyncio.Queue()
            reader = nsq.Reader(
                uniq,
                "c",
                lambda message: got.put_nowait(message.body),
                nsqd_tcp_addresses=shared.nsqd_tcp_address,
            )
            async with reader:  # what is stored is delivered
                await reader.connected(WAIT_S)
                assert await asyncio.wait_for(got.get(), WAIT_S) == b"before"
        assert shared.faults.active == ()
        fault.end()
        await writer.publish(uniq, b"after")
    assert await asyncio.to_thread(healthy, shared) == 200
    assert "No space left on device" in shared.logs


def test_streaming_clients_and_a_full_disk(shared: Broker, uniq: str) -> None:
    with StanClient(_Stan(shared), uniq) as client:  # type: ignore[arg-type]
        assert client.publish(f"s.{uniq}", b"1") == ""
        with shared.faults.full_disk():
            assert client.publish(f"s.{uniq}", b"2") != ""
        assert client.publish(f"s.{uniq}", b"3") == ""


def test_refused_publishes(shared: Broker, uniq: str) -> None:
    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")
    with shared.faults.refuse_publishes():
        assert post(shared, f"/pub?topic={uniq}", b"x")[0] == 503
        assert healthy(shared) == 503
    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")


def test_a_slow_disk(shared: Broker, uniq: str) -> None:
    """Each publish waits at least for the write."""
    delay_s = 0.05
    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")
    with shared.faults.slow_disk(delay_s):
        start = time.monotonic()
        for _ in range(4):
            assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")
        assert time.monotonic() - start >= 4 * delay_s
    with pytest.raises(ValueError, match="above 0"):
        shared.faults.slow_disk(0)
    with shared.faults.slow_disk(3600):  # a wait in progress ends with the fault
        assert healthy(shared) == 200
    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")


def test_faults_at_once(shared: Broker, uniq: str) -> None:
    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")
    slow, full = shared.faults.slow_disk(0.001), shared.faults.full_disk()
    assert shared.faults.active == ("slow_disk", "full_disk")
    slow.end()
    assert post(shared, f"/pub?topic={uniq}", b"x")[0] == 503
    full.end()
    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")
    shared.faults.full_disk()
    shared.faults.refuse_publishes()
    shared.faults.heal()
    assert shared.faults.active == ()
    assert post(shared, f"/pub?topic={uniq}", b"x") == (200, b"OK")


def test_dropped_connections(shared: Broker) -> None:
    """Those of every listener, and only connections: the listeners stay."""
    names = ("nats", "nsq", "nsq_http", "monitor", "bulk")
    with contextlib.ExitStack() as stack:
        clients = []
        for name in names:
            client = socket.create_connection(Address.parse(shared.address(name)), WAIT_S)
            clients.append(stack.enter_context(client))
        assert clients[0].recv(4096).startswith(b"INFO")
        clients[1].sendall(b"  V2SUB t c\n")
        assert clients[1].recv(4096).endswith(b"OK")
        for client, name in list(zip(clients, names, strict=True))[2:]:
            client.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1"), name
        assert shared.faults.drop_connections() >= len(names)
        for client in clients:
            with contextlib.suppress(ConnectionResetError):
                while client.recv(65536):
                    pass
    assert healthy(shared) == 200


def test_faults_end_with_the_process(uniq: str) -> None:
    with Broker() as broker:
        broker.faults.full_disk()
        broker.kill()
        with pytest.raises(BrokerError, match="not running"):
            broker.faults.drop_connections()
        broker.start()
        assert broker.faults.active == ()
        assert post(broker, f"/pub?topic={uniq}", b"x") == (200, b"OK")
        os.kill(broker.pid, signal.SIGTERM)
        broker.wait_for_log("serve: stopped")
