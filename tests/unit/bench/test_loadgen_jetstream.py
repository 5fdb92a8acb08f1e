"""The load generator for JetStream against a fake, and against nats-server if it is there."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.servers.processes import START_DEADLINE_S, _Process

from broker.bench.loadgen import LoadError
from broker.bench.scenarios import JetStreamPublishPlan, run_jetstream_publish
from broker.cli.bench import bench

Address = tuple[str, int]
ROOT = Path(__file__).resolve().parents[3]
ORIGINALS = (ROOT / ".originals/newest/nats-server", shutil.which("nats-server"))


class FakeJetStream:
    """One stream: it answers each publish with a PubAck, some of them with an error."""

    def __init__(self, refuse_every: int = 0) -> None:
        self.refuse_every = refuse_every
        self.seq = 0
        self.verbs: list[str] = []
        self.sizes: list[int] = []
        self.subjects: set[str] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"fake","headers":true} \r\n')
        while line := await reader.readline():
            verb, *words = line.decode().split()
            if verb == "PING":
                writer.write(b"PONG\r\n")
            elif verb == "PUB":
                body = (await reader.readexactly(int(words[-1]) + 2))[:-2]
                answer = self.answer(words[0], body)
                if answer is None:
                    answer = b"NATS/1.0 503\r\n\r\n"
                    size = len(answer)
                    writer.write(b"HMSG %s 1 %d %d\r\n" % (words[1].encode(), size, size))
                else:
                    writer.write(b"MSG %s 1 %d\r\n" % (words[1].encode(), len(answer)))
                writer.write(answer + b"\r\n")
            else:
                assert verb in {"CONNECT", "SUB", "PONG"}, line

    def answer(self, subject: str, body: bytes) -> bytes | None:
        if subject.startswith("$JS.API."):
            self.verbs.append(subject.split(".")[3])
            return b"{}"
        if subject == "nobody":
            return None
        self.seq += 1
        self.sizes.append(len(body))
        self.subjects.add(subject)
        if self.refuse_every and self.seq % self.refuse_every == 0:
            return (
                b'{"error":{"code":503,"err_code":10077,"description":"no"},"stream":"S","seq":0}'
            )
        return b'{"stream":"S","seq":%d}' % self.seq


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address | None]:
    program = next((str(path) for path in ORIGINALS if path and Path(path).exists()), None)
    if program is None:
        yield None
        return
    folder = tmp_path_factory.mktemp("jetstream")
    process = _Process(folder / "log")
    process.spawn([program, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(folder / "data")])
    said = "client connections on 127.0.0.1:"
    deadline = time.monotonic() + START_DEADLINE_S
    while "Server is ready" not in process.output():
        process.step()
        assert time.monotonic() < deadline
    yield "127.0.0.1", int(process.output().partition(said)[2].split()[0])
    process.end(signal.SIGTERM)


@pytest.fixture(params=["fake", "original"])
def server(
    request: pytest.FixtureRequest, original: Address | None, fakes: SimpleNamespace
) -> Iterator[Address]:
    if request.param == "fake":
        with fakes.Server(FakeJetStream().serve) as address:
            yield address
    elif original is not None:
        yield original
    else:
        pytest.skip("no nats-server here")


@pytest.mark.parametrize(("pubs", "window", "subjects"), [(1, 1, 1), (3, 7, 5), (2, 100, 1)])
def test_every_message_is_acknowledged(
    server: Address, pubs: int, window: int, subjects: int
) -> None:
    plan = JetStreamPublishPlan(
        address=server, msgs=500, pubs=pubs, window=window, subjects=subjects, size=33
    )
    result = run_jetstream_publish(plan)
    assert result.published.msgs == result.msgs == 500
    assert result.bytes == 500 * 33
    assert result.delivered is None
    assert result.refused == 0
    assert result.latency_us is not None
    assert 0 < result.latency_us["p50"] <= result.latency_us["max"]


def test_a_stream_is_made_for_the_run_and_deleted(fakes: SimpleNamespace) -> None:
    fake = FakeJetStream()
    with fakes.Server(fake.serve) as address:
        run_jetstream_publish(JetStreamPublishPlan(address=address, msgs=50, size=(0, 30)))
    assert fake.verbs == ["CREATE", "DELETE"]
    assert len(fake.sizes) == 50
    assert len(set(fake.sizes)) > 5


def test_a_stream_that_is_named_is_used(fakes: SimpleNamespace) -> None:
    fake = FakeJetStream()
    with fakes.Server(fake.serve) as address:
        run_jetstream_publish(
            JetStreamPublishPlan(address=address, msgs=50, stream="S", subjects=3)
        )
    assert fake.verbs == []
    assert fake.subjects == {"S.0", "S.1", "S.2"}


def test_a_timed_run_ends_with_the_last_answer(server: Address) -> None:
    result = run_jetstream_publish(JetStreamPublishPlan(address=server, seconds=0.2))
    assert result.msgs > 0
    assert result.seconds >= 0.2


def test_refused_messages_are_counted(fakes: SimpleNamespace) -> None:
    with fakes.Server(FakeJetStream(refuse_every=10).serve) as address:
        result = run_jetstream_publish(JetStreamPublishPlan(address=address, msgs=100))
    assert (result.msgs, result.refused) == (90, 10)
    with (
        fakes.Server(FakeJetStream(refuse_every=1).serve) as address,
        pytest.raises(LoadError, match=r"refused every message: .*10077"),
    ):
        run_jetstream_publish(JetStreamPublishPlan(address=address, msgs=10))


def test_a_subject_of_no_stream_ends_the_run(server: Address) -> None:
    with pytest.raises(LoadError, match="no stream takes the subject"):
        run_jetstream_publish(JetStreamPublishPlan(address=server, msgs=10, stream="nobody"))


def test_a_server_without_jetstream_is_reported(fakes: SimpleNamespace) -> None:
    fake = FakeJetStream()
    fake.answer = lambda subject, body: None  # type: ignore[method-assign]
    with fakes.Server(fake.serve) as address, pytest.raises(LoadError, match="has no JetStream"):
        run_jetstream_publish(JetStreamPublishPlan(address=address, msgs=10))


def test_the_command_prints_the_result(server: Address) -> None:
    words = ["js", "pub", "--server", "{}:{}".format(*server), "--msgs", "200", "--json"]
    done = CliRunner().invoke(bench, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["scenario"], found["msgs"]) == ("js pub", 200)
