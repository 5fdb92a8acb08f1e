"""nats-streaming-server with a store in files, and a client of any such server, over nats-py."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats

from broker.protocols.stan import stan_pb2 as pb
from support.servers.processes import START_DEADLINE_S, ServerError, _Process

ORIGINAL = shutil.which("nats-streaming-server")
WAIT_S = 20.0
CLUSTER = "test-cluster"


class StanSource:
    """One original on a folder of its own; started again it has the same port."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.store = folder / "store"
        self.flags = flags
        self.port = -1
        folder.mkdir(parents=True, exist_ok=True)
        self.process = _Process(folder / "nats-streaming-server.log")

    def start(self) -> StanSource:
        assert ORIGINAL is not None
        self.process.spawn(
            [ORIGINAL, "-a", "127.0.0.1", "-p", str(self.port), "-store", "file",
             "-dir", str(self.store), *self.flags]
        )  # fmt: skip
        deadline = time.monotonic() + START_DEADLINE_S
        while "Streaming Server is ready" not in self.process.output():
            self.process.step()
            if time.monotonic() > deadline:
                raise ServerError(self.process.output())
        port = re.search(
            r"Listening for client connections on 127.0.0.1:(\d+)", self.process.output()
        )
        assert port is not None
        self.port = int(port[1])
        return self

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def acknowledged(self, count: int) -> None:
        """Wait until so many acks were processed: clients get no answer to them. Needs `-SV`."""
        deadline = time.monotonic() + WAIT_S
        while self.process.output().count("Processing ack for") < count:
            if time.monotonic() > deadline:
                raise ServerError(self.process.output())
            await asyncio.sleep(0.01)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        self.process.end(number)

    def __enter__(self) -> StanSource:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)


class Subscription:
    """What a client reads; messages are acknowledged by hand."""

    def __init__(self, client: StanClient, channel: str) -> None:
        self.client = client
        self.channel = channel
        self.inbox = client.nc.new_inbox()
        self.ack_inbox = ""
        self.queue: asyncio.Queue[pb.MsgProto] = asyncio.Queue()

    async def take(self, count: int = 1) -> list[pb.MsgProto]:
        """The next messages."""
        return [await asyncio.wait_for(self.queue.get(), WAIT_S) for _ in range(count)]

    async def ack(self, *sequences: int) -> None:
        for sequence in sequences:
            ack = pb.Ack(subject=self.channel, sequence=sequence)
            await self.client.nc.publish(self.ack_inbox, ack.SerializeToString())
        await self.client.nc.flush()

    async def take_and_ack(self, count: int) -> list[pb.MsgProto]:
        found = await self.take(count)
        await self.ack(*(message.sequence for message in found))
        return found

    async def close(self, *, erase: bool = False) -> None:
        client = self.client
        request = pb.UnsubscribeRequest(
            clientID=client.client_id, subject=self.channel, inbox=self.ack_inbox
        )
        answer = pb.SubscriptionResponse()
        kind = client.answer.unsubRequests if erase else client.answer.subCloseRequests
        await client.ask(kind, request, answer)
        assert not answer.error


class StanClient:
    """One connection under one id."""

    def __init__(self, client_id: str, cluster: str = CLUSTER) -> None:
        self.client_id = client_id
        self.cluster = cluster
        self.answer = pb.ConnectResponse()
        self.nc: Any = None

    async def connect(self, url: str) -> StanClient:
        """OSError with what the server says when it does not let us in."""
        self.nc = await nats.connect(url, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
        inbox = self.nc.new_inbox()
        self.conn_id = inbox.encode()

        async def alive(message: Any) -> None:
            await message.respond(b"")

        await self.nc.subscribe(inbox, cb=alive)
        request = pb.ConnectRequest(
            clientID=self.client_id,
            heartbeatInbox=inbox,
            protocol=1,
            connID=self.conn_id,
            pingInterval=5,
            pingMaxOut=3,
        )
        await self.ask(f"_STAN.discover.{self.cluster}", request, self.answer)
        if self.answer.error:
            await self.nc.close()
            raise OSError(self.answer.error)
        return self

    async def ask(self, subject: str, request: Any, answer: Any) -> None:
        response = await self.nc.request(subject, request.SerializeToString(), timeout=WAIT_S)
        answer.ParseFromString(response.data)

    async def publish(self, channel: str, *bodies: bytes, reply: str = "") -> None:
        """Returns when all are acknowledged."""

        async def one(body: bytes) -> None:
            message = pb.PubMsg(
                clientID=self.client_id,
                guid=f"{id(body)}-{time.monotonic_ns()}",
                subject=channel,
                reply=reply,
                data=body,
                connID=self.conn_id,
            )
            answer = pb.PubAck()
            await self.ask(f"{self.answer.pubPrefix}.{channel}", message, answer)
            assert not answer.error, answer.error

        for body in bodies:
            await one(body)

    async def subscribe(
        self,
        channel: str,
        *,
        durable: str = "",
        queue: str = "",
        start: int = pb.First,
        in_flight: int = 1024,
        ack_wait: int = 600,
    ) -> Subscription:
        found = Subscription(self, channel)

        async def take(message: Any) -> None:
            found.queue.put_nowait(pb.MsgProto.FromString(message.data))

        await self.nc.subscribe(found.inbox, cb=take)
        request = pb.SubscriptionRequest(
            clientID=self.client_id,
            subject=channel,
            qGroup=queue,
            inbox=found.inbox,
            maxInFlight=in_flight,
            ackWaitInSecs=ack_wait,
            durableName=durable,
            startPosition=start,
        )
        answer = pb.SubscriptionResponse()
        await self.ask(self.answer.subRequests, request, answer)
        assert not answer.error, answer.error
        found.ack_inbox = answer.ackInbox
        return found

    async def close(self) -> None:
        """Say goodbye to the streaming server, and hang up."""
        answer = pb.CloseResponse()
        request = pb.CloseRequest(clientID=self.client_id)
        await self.ask(self.answer.closeRequests, request, answer)
        assert not answer.error
        await self.nc.close()

    async def vanish(self) -> None:
        """Hang up without a word."""
        await self.nc.close()


def fill(source: StanSource, work: Callable[[str], Any]) -> None:
    """Run a server for `work(url)`, and end it as an operator does."""
    with source:
        asyncio.run(work(source.url))
        source.stop()
