"""One nsqlookupd as nsqd sees it: a connection that is made again whenever it ends.

What has to be told is kept as the names that changed, not as commands: a nsqlookupd that is away
for a week costs one set of names, and after connecting it is told all there is anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from broker.base.units import PORT_MAX, SECOND
from broker.protocols.nsq import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

LOG = logging.getLogger("broker.nsq.lookup")

_OK = b"OK"
_SHOWN_BYTES = 100  # of a reply that makes no sense, in a log line

Key = tuple[str, str]  # topic, channel or ""


class LookupTimes(NamedTuple):
    """How long to wait, in nanoseconds."""

    io_ns: int = limits.NSQ_LOOKUP_IO
    ping_ns: int = limits.NSQ_LOOKUP_PING
    retry_ns: int = limits.NSQ_LOOKUP_RETRY


class JunkError(Exception):
    """The other side does not talk like a nsqlookupd."""


class LookupLink:
    """Keeps one nsqlookupd informed until it is cancelled."""

    def __init__(
        self,
        address: str,
        identity: Callable[[], Mapping[str, Any]],
        keys: Callable[[], Iterable[Key]],
        exists: Callable[[Key], bool],
        times: LookupTimes,
    ) -> None:
        """`address` is HOST:PORT; `keys()` is all there is to register."""
        self.address = address
        self.http_address: str | None = None  # of the last nsqlookupd that answered there
        self.connected = asyncio.Event()
        self._identity = identity
        self._keys = keys
        self._exists = exists
        self._times = times
        self._changed: dict[Key, bool] = {}  # -> whether it was deleted since it was last told
        self._wake = asyncio.Event()
        self._replies: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._expected = 0

    def note(self, key: Key, made: bool) -> None:
        """A topic or a channel was made or deleted."""
        if self.connected.is_set():
            self._changed[key] = self._changed.get(key, False) or not made
        self._wake.set()

    async def run(self) -> None:
        """Connect, tell, ping, and again; ends by being cancelled only."""
        wait_ns = self._times.retry_ns
        while True:
            try:
                await self._talk()
            except (OSError, EOFError, ValueError, JunkError) as problem:
                cause = str(problem) or type(problem).__name__
                LOG.error("LOOKUPD(%s): %s", self.address, cause)
            if self.connected.is_set():
                wait_ns = self._times.retry_ns
            self.connected.clear()
            self._changed.clear()
            await asyncio.sleep(wait_ns / SECOND)
            wait_ns = min(2 * wait_ns, self._times.ping_ns)

    async def _talk(self) -> None:
        LOG.info("LOOKUP connecting to %s", self.address)
        host, _, port = self.address.rpartition(":")
        self._replies = asyncio.Queue()
        self._expected = 0
        async with asyncio.timeout(self._io_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        listening = asyncio.create_task(self._listen(reader))
        try:
            await self._introduce(writer)
            await self._serve(writer)
        finally:
            listening.cancel()
            writer.transport.abort()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take replies off the wire; what ends that is put behind them."""
        problem: Exception
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
                if not 0 <= size <= limits.NSQ_LOOKUP_BODY_MAX or not self._expected:
                    raise JunkError(f"not a reply: {size} bytes")
                reply = await reader.readexactly(size)
                self._expected -= 1
                self._replies.put_nowait(reply)
        except asyncio.IncompleteReadError:
            problem = EOFError("connection closed")
        except (OSError, JunkError) as error:
            problem = error
        self._replies.put_nowait(problem)
        self._wake.set()

    @property
    def _io_s(self) -> float:
        return self._times.io_ns / SECOND

    async def _send(self, writer: asyncio.StreamWriter, commands: list[bytes]) -> None:
        self._expected += len(commands)
        writer.writelines(commands)
        async with asyncio.timeout(self._io_s):
            await writer.drain()

    async def _reply(self) -> bytes:
        async with asyncio.timeout(self._io_s):
            reply = await self._replies.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _introduce(self, writer: asyncio.StreamWriter) -> None:
        body = orjson.dumps(dict(self._identity()))
        command = b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body
        await self._send(writer, [command])
        reply = await self._reply()
        try:
            said = orjson.loads(reply)
            host, port = said["broadcast_address"], said["http_port"]
            good = isinstance(host, str) and type(port) is int and 0 <= port <= PORT_MAX
        except (ValueError, TypeError, KeyError):
            good = False
        if not good:
            raise JunkError(f"not an answer to IDENTIFY: {reply[:_SHOWN_BYTES]!r}")
        LOG.info("LOOKUPD(%s): peer info %s", self.address, said)
        self.http_address = None
        if host and port:
            self.http_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._changed.clear()
        keys = list(self._keys())
        self.connected.set()  # what is made from here on is noted
        await self._tell(writer, [_command("REGISTER", key) for key in keys])

    async def _serve(self, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        ping_s = self._times.ping_ns / SECOND
        due = loop.time() + ping_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            self._wake.clear()
            if not self._replies.empty():
                await self._reply()  # nobody asked: it is the end of the connection
            changed, self._changed = self._changed, {}
            await self._tell(writer, self._commands(changed))
            if loop.time() >= due:
                LOG.debug("LOOKUPD(%s): sending heartbeat", self.address)
                await self._tell(writer, [b"PING\n"])
                due = loop.time() + ping_s

    def _commands(self, changed: Mapping[Key, bool]) -> list[bytes]:
        commands = []
        for key, deleted in changed.items():
            if deleted:
                commands.append(_command("UNREGISTER", key))
        for key in changed:
            if self._exists(key):
                commands.append(_command("REGISTER", key))
        return commands

    async def _tell(self, writer: asyncio.StreamWriter, commands: list[bytes]) -> None:
        step = limits.NSQ_LOOKUP_BATCH
        for start in range(0, len(commands), step):
            batch = commands[start : start + step]
            await self._send(writer, batch)
            for command in batch:
                reply = await self._reply()
                LOG.debug("LOOKUPD(%s): %s", self.address, command)
                if reply != _OK:
                    raise JunkError(f"{command!r} was answered {reply[:_SHOWN_BYTES]!r}")


def _command(verb: str, key: Key) -> bytes:
    topic, channel = key
    return f"{verb} {topic} {channel}\n".encode() if channel else f"{verb} {topic}\n".encode()
