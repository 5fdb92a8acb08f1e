"""Small servers for the load generator's tests: they ping, cut what they send, and misbehave."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import pytest

Address = tuple[str, int]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeNats:
    """Enough of NATS for a load; pings now and then and cuts what it sends."""

    def __init__(self, breakage: str = "") -> None:
        self.breakage = breakage
        self.subs: list[tuple[bytes, bytes, asyncio.StreamWriter]] = []
        self.pongs = 0
        self.count = 0
        self.lines: dict[asyncio.StreamWriter, list[bytes]] = {}  # control lines of messages

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"fake"} \r\n')
        while line := await reader.readline():
            verb, *words = line.split()
            if verb == b"PING":
                writer.write(b"PONG\r\n")
            elif verb == b"PONG":
                self.pongs += 1
            elif verb == b"SUB":
                self.subs.append((words[0], words[-1], writer))
            elif verb in {b"PUB", b"HPUB"}:
                self.lines.setdefault(writer, []).append(line)
                body = await reader.readexactly(int(words[-1]) + 2)
                assert body.endswith(b"\r\n"), "something stood inside a message"
                if verb == b"HPUB":
                    assert body[: int(words[-2])].startswith(b"NATS/1.0\r\n")
                    assert body[: int(words[-2])].endswith(b"\r\n\r\n")
                await self.publish(verb, words, body, writer)
            else:
                assert verb == b"CONNECT", line

    async def publish(
        self, verb: bytes, words: list[bytes], body: bytes, publisher: asyncio.StreamWriter
    ) -> None:
        self.count += 1
        if self.breakage == "error":
            publisher.write(b"-ERR 'Slow down'\r\n")
        elif self.breakage == "close":
            publisher.close()
        elif self.breakage == "garbage":
            publisher.write(b"HTTP/1.1 400 Bad Request\r\n")
        elif self.breakage == "silence":
            return
        copies = 2 if self.breakage == "twice" else 1
        for subject, sid, writer in self.subs:
            if fits(subject, words[0]):
                line = b" ".join([verb.replace(b"PUB", b"MSG"), words[0], sid, *words[1:]])
                ping = b"" if self.count % 50 else b"PING\r\n"
                await send_in_pieces(writer, (line + b"\r\n" + body) * copies + ping)
        if self.count % 50 == 0:
            publisher.write(b"PING\r\n")
            await publisher.drain()


def fits(pattern: bytes, subject: bytes) -> bool:
    """Whether a subscription without or with a last wildcard matches."""
    if not pattern.endswith(b".*"):
        return pattern == subject
    return subject.rpartition(b".")[0] == pattern[:-2]


Key = tuple[bytes, bytes]  # topic, channel


class FakeNsq:
    """Enough of nsqd for a load. Delivers after RDY or FIN."""

    def __init__(self, breakage: str = "") -> None:
        self.breakage = breakage
        self.waiting: dict[Key, list[bytes]] = {}
        self.places: dict[asyncio.StreamWriter, Key] = {}
        self.commands: dict[asyncio.StreamWriter, list[tuple[bytes, int]]] = {}
        self.in_flight: dict[bytes, asyncio.StreamWriter] = {}
        self.rdy: dict[asyncio.StreamWriter, int] = {}
        self.ids = itertools.count()
        self.nops = 0
        self.fins = 0
        self.waiting_max = 0  # messages between PUB and delivery
        self.outstanding_max = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"  V2"
        while line := await reader.readline():
            verb, *words = line.split()
            if verb in {b"IDENTIFY", b"PUB", b"MPUB"}:
                body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                await self.with_body(verb, words, body, writer)
            elif verb == b"SUB":
                self.places[writer] = words[0], words[1]
                self.waiting.setdefault(self.places[writer], [])
                writer.write(nsq_frame(0, b"_heartbeat_") + nsq_frame(0, b"OK"))
            elif verb == b"RDY":
                self.rdy[writer] = int(words[0])
            elif verb == b"FIN":
                self.fins += 1
                assert self.in_flight.pop(words[0]) is writer
            elif verb == b"CLS":
                writer.write(nsq_frame(0, b"CLOSE_WAIT"))
            else:
                assert verb == b"NOP", line
                self.nops += 1
            await self.deliver()

    async def with_body(
        self, verb: bytes, words: list[bytes], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        bodies = [body] if verb == b"PUB" else []
        at = 4
        while verb == b"MPUB" and at < len(body):
            size = int.from_bytes(body[at : at + 4], "big")
            bodies.append(body[at + 4 : at + 4 + size])
            at += 4 + size
        for (topic, _channel), waiting in self.waiting.items():
            if words and topic == words[0]:
                waiting.extend(bodies)
        if words:
            self.commands.setdefault(writer, []).append((words[0], len(body)))
        self.waiting_max = max(self.waiting_max, sum(map(len, self.waiting.values())))
        if self.breakage == "error" and verb != b"IDENTIFY":
            writer.write(nsq_frame(1, b"E_BAD_TOPIC no such luck"))
        else:
            writer.write(nsq_frame(0, b"OK"))
        if len(self.commands.get(writer, ())) % 30 == 0:
            writer.write(nsq_frame(0, b"_heartbeat_"))

    async def deliver(self) -> None:
        for writer, rdy in self.rdy.items():
            held = sum(owner is writer for owner in self.in_flight.values())
            waiting = self.waiting[self.places[writer]]
            while waiting and held < rdy:
                held += 1
                number = next(self.ids)
                message_id = b"%016x" % number
                attempts = 1
                if self.breakage == "repeat" and number % 10 == 0:
                    attempts = 2
                body = waiting[0] if attempts > 1 else waiting.pop(0)
                self.in_flight[message_id] = writer
                self.outstanding_max = max(self.outstanding_max, held)
                head = bytes(8) + attempts.to_bytes(2, "big") + message_id
                await send_in_pieces(writer, nsq_frame(2, head + body))


def nsq_frame(kind: int, payload: bytes) -> bytes:
    return (len(payload) + 4).to_bytes(4, "big") + kind.to_bytes(4, "big") + payload


# Two publishers may have something for one subscriber: the pieces of each stay together.
_LOCKS: WeakKeyDictionary[asyncio.StreamWriter, asyncio.Lock] = WeakKeyDictionary()


async def send_in_pieces(writer: asyncio.StreamWriter, data: bytes) -> None:
    at = random.Random(len(data)).randrange(len(data) + 1)
    async with _LOCKS.setdefault(writer, asyncio.Lock()):
        writer.write(data[:at])
        await writer.drain()
        writer.write(data[at:])
        await writer.drain()


class FakeServer:
    """Runs a fake on a loop of its own thread."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.failures: list[BaseException] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Address:
        self.thread.start()
        future = asyncio.run_coroutine_threadsafe(self.bind(), self.loop)
        host, port = future.result(10)
        return host, port

    async def bind(self) -> Address:
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        return host, port

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self.handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a run that fails drops its connections anywhere
        except AssertionError as error:
            self.failures.append(error)
        finally:
            self.tasks.discard(task)
            writer.close()

    async def end(self) -> None:
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self.end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
        if self.failures and exc[0] is None:
            raise self.failures[0]


@pytest.fixture(scope="session")
def fakes() -> SimpleNamespace:
    """The classes themselves: test files cannot import from here."""
    return SimpleNamespace(Nats=FakeNats, Nsq=FakeNsq, Server=FakeServer)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Address]]:
    from support import Originals

    if Originals.missing():
        yield {}
        return
    server = Originals(tmp_path_factory.mktemp("originals"))
    server.start()
    yield {"nats": tuple(server.nats), "nsq": tuple(server.nsq)}
    server.close()


@pytest.fixture(params=["fake", "original"])
def nats(request: pytest.FixtureRequest, originals: dict[str, Address]) -> Iterator[Address]:
    if request.param == "fake":
        with FakeServer(FakeNats().serve) as address:
            yield address
    elif originals:
        yield originals["nats"]
    else:
        pytest.skip("nats-server or nsqd not on PATH")


@pytest.fixture(params=["fake", "original"])
def nsq(request: pytest.FixtureRequest, originals: dict[str, Address]) -> Iterator[Address]:
    if request.param == "fake":
        with FakeServer(FakeNsq().serve) as address:
            yield address
    elif originals:
        yield originals["nsq"]
    else:
        pytest.skip("nats-server or nsqd not on PATH")
