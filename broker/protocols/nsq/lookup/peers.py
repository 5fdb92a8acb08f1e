"""The nsqd's side: telling nsqlookupds what is here, and asking them which channels a topic has.

Each nsqlookupd has a task of its own; one that is down, slow or makes no sense costs nobody else
anything. Source: nsqd/lookup.go, lookup_peer.go; nsqd.go GetTopic.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
import orjson

from broker import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from broker.core.engine import Engine
    from broker.core.log import Log

LOG = logging.getLogger("broker.nsq.lookup")

_MAGIC: Final = b"  V1"
_SIZE: Final = struct.Struct(">i")
_S: Final = limits.SECOND


class _PeerError(Exception):
    """The conversation with a nsqlookupd cannot go on."""


class _About(msgspec.Struct):
    broadcast_address: str = ""
    http_port: int = 0


class _Channels(msgspec.Struct):
    channels: list[str] = []


class Peer:
    """One nsqlookupd: connected, or about to be."""

    def __init__(self, peers: Peers, address: str) -> None:
        self.peers = peers
        self.address = address
        self.http_address = ""  # known from its answer to IDENTIFY
        self.connected = asyncio.Event()
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(limits.LOOKUP_QUEUE_MAX)
        self.task = asyncio.get_running_loop().create_task(self._run())

    def tell(self, command: bytes) -> None:
        """Send a command when its turn comes; too many of them: say everything anew."""
        try:
            self.queue.put_nowait(command)
        except asyncio.QueueFull:
            LOG.warning("LOOKUPD(%s): does not keep up, is told everything again", self.address)
            self.task.cancel()
            self.queue = asyncio.Queue(limits.LOOKUP_QUEUE_MAX)
            self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            writer = None
            try:
                reader, writer = await asyncio.wait_for(self._connect(), limits.LOOKUP_TIMEOUT / _S)
                await self._converse(reader, writer)
            except (OSError, EOFError, ValueError, TimeoutError, _PeerError) as problem:
                LOG.error("LOOKUPD(%s): %s", self.address, problem or type(problem).__name__)
            finally:
                self.connected.clear()
                if writer is not None:
                    writer.close()
            await asyncio.sleep(self.peers.retry_s)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.address.rpartition(":")
        return await asyncio.open_connection(host.strip("[]"), int(port))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self.queue.empty():
            self.queue.get_nowait()  # all of it is said again in a moment
        body = orjson.dumps(self.peers.about())
        writer.write(_MAGIC)
        (answer,) = await self._ask(reader, writer, [b"IDENTIFY\n" + _SIZE.pack(len(body)) + body])
        try:
            about = msgspec.json.decode(answer, type=_About)
        except msgspec.DecodeError:
            raise _PeerError(f"answered IDENTIFY with {answer[:100]!r}") from None
        self.http_address = f"{about.broadcast_address}:{about.http_port}"
        LOG.info("LOOKUPD(%s): peer info %s", self.address, answer.decode("utf-8", "replace"))
        commands = list(self.peers.registrations())
        for at in range(0, len(commands), limits.LOOKUP_BATCH):
            await self._ask(reader, writer, commands[at : at + limits.LOOKUP_BATCH])
        self.connected.set()
        while True:
            try:
                async with asyncio.timeout(limits.LOOKUP_PING / _S):
                    command = await self.queue.get()
            except TimeoutError:
                command = b"PING\n"
            await self._ask(reader, writer, [command])

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, commands: Sequence[bytes]
    ) -> list[bytes]:
        """Send commands, return the answer of each."""
        writer.write(b"".join(commands))
        answers = []
        for command in commands:
            async with asyncio.timeout(limits.LOOKUP_TIMEOUT / _S):
                (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                if not 0 <= size <= limits.LOOKUP_ANSWER_MAX:
                    raise _PeerError(f"answer of {size} bytes")
                answers.append(await reader.readexactly(size))
            if answers[-1].startswith(b"E_"):
                text = command.split(b"\n")[0].decode()
                raise _PeerError(f"{text}: {answers[-1].decode('utf-8', 'replace')}")
        return answers

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Peers:
    """All nsqlookupds of one broker."""

    def __init__(
        self,
        engine: Engine,
        about: Callable[[], dict[str, object]],
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        """`about()`: what IDENTIFY says of us; `timeout` is for questions over HTTP."""
        self.engine = engine
        self.about = about
        self.timeout = timeout
        self.retry_s = limits.LOOKUP_RETRY / _S
        self.peers: dict[str, Peer] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        engine.shared.changed = self._changed

    @property
    def addresses(self) -> list[str]:
        """The nsqlookupds in force."""
        return list(self.peers)

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Talk to these from now on and to no others."""
        wanted = dict.fromkeys(addresses)
        for address in [a for a in self.peers if a not in wanted]:
            LOG.info("LOOKUP(%s): removing peer", address)
            self._later(self.peers.pop(address).stop())
        for address in wanted:
            if address not in self.peers:
                LOG.info("LOOKUP(%s): adding peer", address)
                self.peers[address] = Peer(self, address)

    def registrations(self) -> Iterable[bytes]:
        """REGISTER for everything that is here."""
        for name, log in self.engine.logs.items():
            if not log.cursors:
                yield b"REGISTER %b\n" % name.encode()
            for cursor in log.cursors:
                yield b"REGISTER %b %b\n" % (name.encode(), cursor.encode())

    def _changed(self, log: str, cursor: str | None, present: bool) -> None:
        command = "REGISTER" if present else "UNREGISTER"
        line = f"{command} {log} {cursor}\n" if cursor else f"{command} {log}\n"
        for peer in self.peers.values():
            peer.tell(line.encode())
        if present and cursor is None and any(p.http_address for p in self.peers.values()):
            made = self.engine.log(log)
            assert made is not None
            made.gather(True)
            self._later(self._precreate(made))

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _precreate(self, log: Log) -> None:
        """Make the channels that a topic has elsewhere before its first message goes to any."""
        try:
            for channel in sorted(await self.channels_elsewhere(log.name)):
                if not channel.endswith("#ephemeral") and not log.deleted:
                    log.open_cursor(channel)
        except OSError as problem:
            LOG.error("channels of %s cannot be made: %s", log.name, problem)
        finally:
            log.gather(False)

    async def channels_elsewhere(self, topic: str) -> set[str]:
        """What the nsqlookupds know of a topic's channels; silent ones count nothing."""
        addresses = {p.http_address for p in self.peers.values() if p.http_address}
        async with aiohttp.ClientSession(timeout=self.timeout) as session:
            found = await asyncio.gather(*(self._channels(session, a, topic) for a in addresses))
        return set().union(*found)

    async def _channels(
        self, session: aiohttp.ClientSession, address: str, topic: str
    ) -> list[str]:
        try:
            async with session.get(
                f"http://{address}/channels", params={"topic": topic}
            ) as response:
                body = await response.content.read(limits.LOOKUP_ANSWER_MAX)
                return msgspec.json.decode(body, type=_Channels).channels
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
            LOG.warning("LOOKUPD(%s): channels of %s: %s", address, topic, problem)
            return []

    async def stop(self) -> None:
        """Talk to nobody any more."""
        self.engine.shared.changed = None
        for peer in self.peers.values():
            await peer.stop()
        self.peers.clear()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
