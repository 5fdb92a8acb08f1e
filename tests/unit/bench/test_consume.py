"""The readers of the load generator for JetStream, against a fake."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from broker.bench.loadgen import LoadError
from broker.bench.scenarios import JetStreamConsumePlan, run_jetstream_consume
from broker.cli.bench import bench


class FakeConsumers:
    """Streams that take all, and consumers that have `count` messages of ten bytes."""

    def __init__(self, count: int, *, ends_early: bool = False) -> None:
        self.count = count
        self.ends_early = ends_early  # every other request ends after half of its batch
        self.left = count
        self.requests: list[dict[str, Any]] = []
        self.acks: list[str] = []
        self.flow: list[str] = []
        self.verbs: list[str] = []
        self.writers: dict[str, asyncio.StreamWriter] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"fake","headers":true} \r\n')
        while line := await reader.readline():
            verb, *words = line.decode().split()
            if verb == "PING":
                writer.write(b"PONG\r\n")
            elif verb == "SUB":
                self.writers[words[0]] = writer
            elif verb == "PUB":
                body = (await reader.readexactly(int(words[-1]) + 2))[:-2]
                self.take(writer, words[0], words[1] if len(words) > 2 else "", body)

    def take(self, writer: asyncio.StreamWriter, subject: str, reply: str, body: bytes) -> None:
        if subject.startswith("$JS.ACK."):
            assert body == b"+ACK"
            self.acks.append(subject)
        elif subject.startswith("$JS.FC."):
            self.flow.append(subject)
            self.send(self.pushed_to, self.left)
        elif subject.startswith("$JS.API.CONSUMER.MSG.NEXT."):
            self.requests.append(json.loads(body))
            batch = self.requests[-1]["batch"]
            if self.ends_early and len(self.requests) % 2:
                self.send(reply, batch // 2)
                self.status(reply, "", b"408 Request Timeout")
            else:
                self.send(reply, batch)
        else:
            writer.write(b"MSG %s 1 2\r\n{}\r\n" % reply.encode())
            if subject.startswith("$JS.API."):
                self.verbs.append(".".join(subject.split(".")[2:4]))
            if "CONSUMER.CREATE" in subject and "deliver_subject" in json.loads(body)["config"]:
                self.pushed_to = json.loads(body)["config"]["deliver_subject"]
                self.send(self.pushed_to, self.count // 2)
                self.status(self.pushed_to, "$JS.FC.S.C.abcd", b"100 FlowControl Request")

    def send(self, inbox: str, count: int) -> None:
        for _ in range(min(count, self.left)):
            self.left -= 1
            line = f"MSG s 1 $JS.ACK.S.C.{self.left} 10\r\n0123456789\r\n"
            self.writers[inbox].write(line.encode())

    def status(self, inbox: str, reply: str, text: bytes) -> None:
        head = b"NATS/1.0 " + text + b"\r\n\r\n"
        line = f"HMSG {inbox} 1 {reply} {len(head)} {len(head)}\r\n"
        self.writers[inbox].write(line.encode() + head + b"\r\n")


def test_pushed_messages_are_counted_and_flow_control_is_answered(fakes: SimpleNamespace) -> None:
    fake = FakeConsumers(300)
    with fakes.Server(fake.serve) as address:
        result = run_jetstream_consume(JetStreamConsumePlan(address=address, msgs=300, size=10))
    assert (result.scenario, result.msgs, result.bytes) == ("js consume", 300, 3000)
    assert (fake.flow, fake.acks) == (["$JS.FC.S.C.abcd"], [])
    assert fake.verbs == ["STREAM.CREATE", "CONSUMER.CREATE", "STREAM.DELETE"]


@pytest.mark.parametrize("ends_early", [False, True])
def test_batches_are_requested_and_acked(fakes: SimpleNamespace, ends_early: bool) -> None:
    fake = FakeConsumers(300, ends_early=ends_early)
    with fakes.Server(fake.serve) as address:
        plan = JetStreamConsumePlan(address=address, msgs=300, batch=50, stream="S")
        result = run_jetstream_consume(plan)
    assert (result.scenario, result.msgs) == ("js fetch", 300)
    assert len(fake.acks) == len(set(fake.acks)) == 300
    assert len(fake.requests) == (8 if ends_early else 6)
    assert fake.verbs == ["CONSUMER.CREATE"]


def test_a_consumer_that_vanished_ends_the_run(fakes: SimpleNamespace) -> None:
    fake = FakeConsumers(10)
    fake.send = lambda inbox, count: fake.status(inbox, "", b"503")  # type: ignore[method-assign]
    with (
        fakes.Server(fake.serve) as address,
        pytest.raises(LoadError, match="no consumer takes the request"),
    ):
        run_jetstream_consume(JetStreamConsumePlan(address=address, msgs=10, batch=5, stream="S"))


def test_the_commands_print_the_result(fakes: SimpleNamespace) -> None:
    for kind in ("consume", "fetch"):
        fake = FakeConsumers(200)
        with fakes.Server(fake.serve) as address:
            words = ["js", kind, "--server", "{}:{}".format(*address), "--msgs", "200", "--json"]
            done = CliRunner().invoke(bench, words)
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["scenario"], found["msgs"]) == (f"js {kind}", 200)
