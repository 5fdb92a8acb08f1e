"""nsqd's side of nsqlookupd: reports topics and channels, and asks which channels a new topic has.

Each nsqlookupd has one connection, which is opened again whenever it ends, and a task of its own,
so that one that is down or slow does not delay the others. Pending reports are kept as the names
that changed, not as commands: a nsqlookupd that is unreachable for a week costs one set of names,
and everything is registered after connecting anyway.

Delivery of a new topic is paused (Log.pause_delivery) until the known nsqlookupds have answered or
the timeout has passed. Messages that are published meanwhile are stored and acknowledged, and then
delivered to the channels in the answers as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import aiohttp
import orjson

from broker.base.units import PORT_MAX, SECOND
from broker.engine.log.policy import ACKED
from broker.engine.names import is_ephemeral, is_name
from broker.protocols.nsq import limits
from broker.protocols.nsq.topics import channels_of, streams_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.protocols.nsq.config import NsqConfig

LOG = logging.getLogger("broker.nsq.lookup")

_OK = b"OK"
_SHOWN_BYTES = 100  # of an invalid reply, in a log line

Key = tuple[str, str]  # topic, channel or ""


class LookupTimes(NamedTuple):
    """How long to wait, in nanoseconds."""

    io_ns: int = limits.NSQ_LOOKUP_IO
    ping_ns: int = limits.NSQ_LOOKUP_PING
    retry_ns: int = limits.NSQ_LOOKUP_RETRY


class JunkError(Exception):
    """The other side does not answer like a nsqlookupd."""


class LookupLink:
    """Reports topics and channels to one nsqlookupd until cancelled."""

    def __init__(
        self,
        address: str,
        identity: Callable[[], Mapping[str, Any]],
        keys: Callable[[], Iterable[Key]],
        exists: Callable[[Key], bool],
        times: LookupTimes,
    ) -> None:
        """`address` is HOST:PORT; `keys()` returns everything to register."""
        self.address = address
        self.http_address: str | None = None  # of the nsqlookupd that answered last at `address`
        self.connected = asyncio.Event()
        self._identity = identity
        self._keys = keys
        self._exists = exists
        self._times = times
        self._changed: dict[Key, bool] = {}  # since the last report -> whether it was deleted
        self._wake = asyncio.Event()
        self._replies: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._expected = 0

    def note(self, key: Key, created: bool) -> None:
        """Note that a topic or a channel was created or deleted."""
        if self.connected.is_set():
            self._changed[key] = self._changed.get(key, False) or not created
        self._wake.set()

    async def run(self) -> None:
        """Connect, report, ping, and connect again; runs until it is cancelled."""
        wait_ns = self._times.retry_ns
        while True:
            try:
                await self._connect()
            except (OSError, EOFError, ValueError, OverflowError, JunkError) as problem:
                cause = str(problem) or type(problem).__name__
                LOG.error("LOOKUPD(%s): %s", self.address, cause)
            if self.connected.is_set():
                wait_ns = self._times.retry_ns
            self.connected.clear()
            self._changed.clear()
            await asyncio.sleep(wait_ns / SECOND)
            wait_ns = min(2 * wait_ns, self._times.ping_ns)

    async def _connect(self) -> None:
        LOG.info("LOOKUP connecting to %s", self.address)
        host, _, port = self.address.rpartition(":")
        self._replies = asyncio.Queue()
        self._expected = 0
        async with asyncio.timeout(self._io_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        listening = asyncio.create_task(self._listen(reader))
        try:
            await self._identify(writer)
            await self._serve(writer)
        finally:
            listening.cancel()
            writer.transport.abort()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Read replies into the queue; the error that ends this follows them."""
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

    async def _identify(self, writer: asyncio.StreamWriter) -> None:
        body = orjson.dumps(dict(self._identity()))
        command = b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body
        await self._send(writer, [command])
        reply = await self._reply()
        try:
            identity = orjson.loads(reply)
            host, port = identity["broadcast_address"], identity["http_port"]
            good = isinstance(host, str) and type(port) is int and 0 <= port <= PORT_MAX
        except (ValueError, TypeError, KeyError):
            good = False
        if not good:
            raise JunkError(f"not an answer to IDENTIFY: {reply[:_SHOWN_BYTES]!r}")
        LOG.info("LOOKUPD(%s): peer info %s", self.address, orjson.dumps(identity).decode())
        self.http_address = None
        if host and port:
            self.http_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._changed.clear()
        keys = list(self._keys())
        self.connected.set()  # changes are noted from now on
        await self._report(writer, [_command("REGISTER", key) for key in keys])

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
                await self._reply()  # no command is pending: raises the connection's error
            changed, self._changed = self._changed, {}
            await self._report(writer, self._commands(changed))
            if loop.time() >= due:
                LOG.debug("LOOKUPD(%s): sending heartbeat", self.address)
                await self._report(writer, [b"PING\n"])
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

    async def _report(self, writer: asyncio.StreamWriter, commands: list[bytes]) -> None:
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


class LookupPeers:
    """All nsqlookupds of one nsqd. Needs a running loop; `start` once the listeners are open."""

    def __init__(self, config: NsqConfig, engine: Engine, times: LookupTimes | None = None) -> None:
        self.config = config
        self.engine = engine
        self.links: dict[str, LookupLink] = {}
        self.topology: dict[str, str] = {
            "topology_zone": config.topology_zone,
            "topology_region": config.topology_region,
        }
        self._times = times or LookupTimes()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._ports = (0, 0)
        self._http: aiohttp.ClientSession | None = None
        self._hostname = socket.gethostname()

    def start(self, tcp_port: int, http_port: int, addresses: Sequence[str]) -> None:
        """Begin to report; the ports are those that are open, 0 = none."""
        self._ports = tcp_port, http_port
        self.engine.watch(self._changed)
        self.set_addresses(addresses)

    async def stop(self) -> None:
        """Close every connection; nsqlookupds notice that and remove this nsqd."""
        if self._changed in self.engine.shared.watchers:
            self.engine.unwatch(self._changed)
        tasks = [*self._tasks.values(), *self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self.links.clear()
        if self._http is not None:
            await self._http.close()
            self._http = None

    @property
    def addresses(self) -> list[str]:
        """The HOST:PORT of each nsqlookupd."""
        return list(self.links)

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Use these addresses from now on; connections to those already in use stay."""
        wanted = dict.fromkeys(addresses)
        for address in [a for a in self.links if a not in wanted]:
            LOG.info("LOOKUP(%s): removing peer", address)
            del self.links[address]
            self._tasks.pop(address).cancel()
        for address in [a for a in wanted if a not in self.links]:
            LOG.info("LOOKUP(%s): adding peer", address)
            link = LookupLink(address, self.identity, self._keys, self._exists, self._times)
            self.links[address] = link
            self._tasks[address] = asyncio.create_task(link.run())

    def identity(self) -> dict[str, Any]:
        """The body of IDENTIFY: the addresses of this nsqd."""
        config = self.config
        return {
            "version": limits.NSQ_VERSION,
            "tcp_port": config.broadcast_tcp_port or self._ports[0],
            "http_port": config.broadcast_http_port or self._ports[1],
            "hostname": self._hostname,
            "broadcast_address": config.broadcast_address or self._hostname,
            **self.topology,
        }

    # --- topics and channels

    def _keys(self) -> Iterator[Key]:
        for topic, log in sorted(self.engine.logs.items()):
            if is_name(topic.encode()):
                channels = [cursor.name for cursor in channels_of(log)]
                yield from ((topic, channel) for channel in channels or [""])
        for topic, stream in sorted(streams_of(self.engine).items()):
            channels = [channel.name for channel in stream.channels.all()]
            yield from ((topic, channel) for channel in channels or [""])

    def _exists(self, key: Key) -> bool:
        stream = self.engine.reserved.get(key[0])
        if stream is not None:
            return not key[1] or key[1] in {channel.name for channel in stream.channels.all()}
        log = self.engine.log(key[0])
        return log is not None and (not key[1] or key[1] in log.cursors)

    def _changed(self, topic: str, channel: str | None, created: bool) -> None:
        if not is_name(topic.encode()) or not is_name((channel or topic).encode()):
            return  # not an NSQ topic
        for link in self.links.values():
            link.note((topic, channel or ""), created)
        log = self.engine.log(topic)
        if created and channel is None and log is not None:
            self._ask(log)

    # --- channels of a new topic

    def _ask(self, log: Log) -> None:
        known = {link.http_address for link in self.links.values() if link.http_address}
        if not known:
            return
        start = 0
        waits_for_acks = log.policy.retention == ACKED
        if waits_for_acks:
            log.pause_delivery()
        else:
            # its messages are kept anyway, and a pause would delay other readers
            start = log.backlog_seq
        task = asyncio.create_task(self._create_channels(log, sorted(known), start))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        if waits_for_acks:
            task.add_done_callback(lambda _: log.resume_delivery())

    async def _create_channels(self, log: Log, known: list[str], start: int) -> None:
        answers = await asyncio.gather(*(self._channels(address, log.name) for address in known))
        for channel in sorted(set().union(*answers)):
            if log.deleted or is_ephemeral(channel.encode()):
                continue
            try:
                log.open_cursor(channel, start=start and max(start, log.first_seq))
            except OSError as problem:
                LOG.error("channel %s of %s cannot be made: %s", channel, log.name, problem)

    async def _channels(self, address: str, topic: str) -> set[str]:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(
                    total=limits.NSQ_LOOKUP_HTTP_REQUEST / SECOND,
                    connect=limits.NSQ_LOOKUP_HTTP_CONNECT / SECOND,
                ),
                headers={"Accept": "application/vnd.nsq; version=1.0"},
            )
        url = f"http://{address}/channels?topic={quote(topic, safe='')}"
        try:
            async with self._http.get(url, allow_redirects=False) as response:
                body = await response.content.read(limits.NSQ_LOOKUP_CHANNELS_BYTES)
                while len(body) < limits.NSQ_LOOKUP_CHANNELS_BYTES:
                    more = await response.content.read(limits.NSQ_LOOKUP_CHANNELS_BYTES - len(body))
                    if not more:
                        break
                    body += more
            page = orjson.loads(body)
            page = page.get("data", page)  # older versions wrap the answer
            found = page["channels"]
            return {c for c in found if isinstance(c, str) and is_name(c.encode())}
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
            LOG.error("LOOKUPD(%s): channels of %s: %s", address, topic, problem)
        except (TypeError, KeyError, AttributeError):
            LOG.error("LOOKUPD(%s): channels of %s: not an answer", address, topic)
        return set()
