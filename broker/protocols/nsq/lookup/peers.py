"""The nsqlookupds of one nsqd: tells them what topics and channels there are, and asks them which
channels a new topic should have.

Each nsqlookupd has a task of its own, so one that is down or slow holds nobody up. A new topic is
held (engine/log/hold) until those that are known have answered or their time is over. What comes
meanwhile is stored and acknowledged, and goes to the channels made here as to any other.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import aiohttp
import orjson

from broker.base.units import SECOND
from broker.engine.log.hold import hold, release
from broker.protocols.nsq import limits
from broker.protocols.nsq.channels import channels_of
from broker.protocols.nsq.lookup.client import LookupLink, LookupTimes
from broker.protocols.nsq.wire import is_ephemeral, is_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.protocols.nsq.lookup.client import Key

LOG = logging.getLogger("broker.nsq.lookup")


class PeersSettings(Protocol):
    """The part of config.NsqConfig that is used here."""

    @property
    def broadcast_address(self) -> str: ...
    @property
    def broadcast_tcp_port(self) -> int: ...
    @property
    def broadcast_http_port(self) -> int: ...
    @property
    def topology_zone(self) -> str: ...
    @property
    def topology_region(self) -> str: ...


class LookupPeers:
    """Needs a running loop; `start` once the doors are open."""

    def __init__(
        self, config: PeersSettings, engine: Engine, times: LookupTimes | None = None
    ) -> None:
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
        """Begin to tell; the ports are those really listened on, 0 = none."""
        self._ports = tcp_port, http_port
        self.engine.watch(self._changed)
        self.set_addresses(addresses)

    async def stop(self) -> None:
        """End every connection; nsqlookupds notice by that."""
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
        """HOST:PORT of each nsqlookupd."""
        return list(self.links)

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """From now on these; links to those that stay are not touched."""
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
        """What nsqlookupds are told of us."""
        config = self.config
        return {
            "version": limits.NSQ_VERSION,
            "tcp_port": config.broadcast_tcp_port or self._ports[0],
            "http_port": config.broadcast_http_port or self._ports[1],
            "hostname": self._hostname,
            "broadcast_address": config.broadcast_address or self._hostname,
            **self.topology,
        }

    # --- what there is

    def _keys(self) -> Iterator[Key]:
        for topic, log in sorted(self.engine.logs.items()):
            if is_name(topic.encode()):
                channels = [cursor.name for cursor in channels_of(log)]
                yield from ((topic, channel) for channel in channels or [""])

    def _exists(self, key: Key) -> bool:
        log = self.engine.log(key[0])
        return log is not None and (not key[1] or key[1] in log.cursors)

    def _changed(self, topic: str, channel: str | None, made: bool) -> None:
        if not is_name(topic.encode()) or not is_name((channel or topic).encode()):
            return  # not a topic of NSQ
        for link in self.links.values():
            link.note((topic, channel or ""), made)
        log = self.engine.log(topic)
        if made and channel is None and log is not None:
            self._ask(log)

    # --- channels of a new topic

    def _ask(self, log: Log) -> None:
        known = {link.http_address for link in self.links.values() if link.http_address}
        if not known:
            return
        start = 0
        if log.face is None:
            hold(log)
        else:
            start = log.backlog_seq  # what comes meanwhile is kept anyway, and others wait for it
        task = asyncio.create_task(self._create_channels(log, sorted(known), start))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        if log.face is None:
            task.add_done_callback(lambda _: release(log))

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
            page = page.get("data", page)  # older ones wrap it
            found = page["channels"]
            return {c for c in found if isinstance(c, str) and is_name(c.encode())}
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
            LOG.error("LOOKUPD(%s): channels of %s: %s", address, topic, problem)
        except (TypeError, KeyError, AttributeError):
            LOG.error("LOOKUPD(%s): channels of %s: not an answer", address, topic)
        return set()
