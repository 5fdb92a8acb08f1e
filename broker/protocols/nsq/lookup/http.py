"""The HTTP side of nsqlookupd: /lookup, /topics, /channels, /nodes and the rest.

Every consumer repeats GET /lookup. While a connection has had no other request, it is answered from
the registry's encoded answers; the first request of any other form moves the connection to the
general HTTP server permanently, so that answers keep their order.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import re
import time
from typing import TYPE_CHECKING, Final, Protocol, cast

import orjson

from broker.engine.names import is_name
from broker.net.http.errors import HttpError
from broker.protocols.nsq import limits
from broker.protocols.nsq.http import errors
from broker.protocols.nsq.http.app import (
    CONTENT_TYPE,
    CONTENT_TYPE_VALUE,
    ApiError,
    Encoded,
    Route,
    make_app,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from broker.protocols.nsq.http.app import Answer, Query
    from broker.protocols.nsq.lookup.registry import Entry, Registry

LOG = logging.getLogger("broker.nsqlookupd")

# A whole request for /lookup without a body, and without headers that change the answer.
# The caller has checked the end of the request; this pattern only matches at its start.
_PLAIN: Final = re.compile(
    rb"GET /lookup\?topic=([.a-zA-Z0-9_-]{1,64}) HTTP/1\.1\r\n"
    rb"(?:(?!(?i:content-length|transfer-encoding|expect|upgrade|origin|sec-fetch-"
    rb"|connection:(?! ?keep-alive\r)))"
    rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)+\r\n"
)
_HOST: Final = re.compile(rb"\r\n(?i:host):[ \t]*([^ \t\r]+)")
_END: Final = b"\r\n\r\n"
_HEAD: Final = (
    f"Content-Type: application/json; charset=utf-8\r\n{CONTENT_TYPE}: {CONTENT_TYPE_VALUE}\r\n"
)


class DateLine:
    """The first lines of every answer, formatted once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def get(self) -> bytes:
        """Status line and Date header."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            date = email.utils.formatdate(second, usegmt=True)
            self._line = f"HTTP/1.1 200 OK\r\nDate: {date}\r\n{_HEAD}Content-Length: ".encode()
        return self._line


class LookupApi:
    """The handlers of the general HTTP server."""

    def __init__(self, registry: Registry, now_ns: Callable[[], int]) -> None:
        """`now_ns`: the clock for inactivity and tombstones."""
        self.registry = registry
        self.now_ns = now_ns
        self.date_line = DateLine()

    def app(self) -> web.Application:
        """The application with all routes."""
        routes = {
            "/ping": {"GET": Route(self.ping, versioned=False)},
            "/info": {"GET": Route(self.info)},
            "/lookup": {"GET": Route(self.lookup)},
            "/topics": {"GET": Route(self.topics)},
            "/channels": {"GET": Route(self.channels)},
            "/nodes": {"GET": Route(self.nodes)},
            "/debug": {"GET": Route(self.debug)},
            "/topic/create": {"POST": Route(self.topic_create)},
            "/topic/delete": {"POST": Route(self.topic_delete)},
            "/topic/tombstone": {"POST": Route(self.topic_tombstone)},
            "/channel/create": {"POST": Route(self.channel_create)},
            "/channel/delete": {"POST": Route(self.channel_delete)},
        }
        return make_app(routes, limits.NSQ_LOOKUP_BODY_MAX)

    async def ping(self, _request: web.Request, _query: Query) -> Answer:
        """Answer OK."""
        return "OK"

    async def info(self, _request: web.Request, _query: Query) -> Answer:
        """Answer the version."""
        return {"version": limits.NSQ_VERSION}

    async def lookup(self, _request: web.Request, query: Query) -> Answer:
        """Channels and active producers of a topic."""
        topic = _given(query, "topic", errors.NSQ_HTTP_NO_TOPIC)
        producers = self.registry.producers(topic, self.now_ns())
        if producers is None:
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_TOPIC)
        return {
            "channels": self.registry.channel_names(topic),
            "producers": [producer.encoded for producer in producers],
        }

    async def topics(self, _request: web.Request, _query: Query) -> Answer:
        """The names of all topics."""
        return {"topics": sorted(self.registry.topics)}

    async def channels(self, _request: web.Request, query: Query) -> Answer:
        """The names of a topic's channels."""
        topic = _given(query, "topic", errors.NSQ_HTTP_NO_TOPIC)
        return {"channels": self.registry.channel_names(topic)}

    async def nodes(self, _request: web.Request, _query: Query) -> Answer:
        """Active producers with their topics."""
        return {"producers": self.registry.nodes(self.now_ns())}

    async def debug(self, _request: web.Request, _query: Query) -> Answer:
        """All registrations, with times on the wall clock. They are collected in parts, between
        which other clients are served."""
        parts: list[bytes] = []
        stop_ns = self.now_ns() + limits.NSQ_LOOKUP_TURN
        for entry in list(self.registry.entries()):
            rows = self._debug_rows(entry)
            if rows:
                name = f"{entry.category}:{entry.key}:{entry.subkey}"
                parts.append(orjson.dumps(name) + b":" + orjson.dumps(rows))
            if self.now_ns() >= stop_ns:
                await asyncio.sleep(0)
                stop_ns = self.now_ns() + limits.NSQ_LOOKUP_TURN
        return Encoded(b"{%b}" % b",".join(parts))

    def _debug_rows(self, entry: Entry) -> list[dict[str, object]]:
        now_ns, wall_ns = self.now_ns(), time.time_ns()
        life_ns = self.registry.tombstone_ns
        return [
            {
                "id": producer.id,
                **{k: v for k, v in producer.fields.items() if k != "remote_address"},
                "last_update": wall_ns - (now_ns - producer.seen_ns),
                "tombstoned": until_ns > 0,
                "tombstoned_at": wall_ns - (now_ns - until_ns) - life_ns if until_ns else 0,
            }
            for producer, until_ns in entry.producers.items()
        ]

    async def topic_create(self, _request: web.Request, query: Query) -> Answer:
        """Create the key of a topic."""
        topic = _given(query, "topic", errors.NSQ_HTTP_NO_TOPIC)
        _valid(topic, errors.NSQ_HTTP_ARG_TOPIC)
        LOG.info("DB: adding topic(%s)", topic)
        self.registry.add(topic)
        return None

    async def topic_delete(self, _request: web.Request, query: Query) -> Answer:
        """Remove a topic and its channels, if they exist."""
        topic = _given(query, "topic", errors.NSQ_HTTP_NO_TOPIC)
        for entry in self.registry.remove_topic(topic):
            if entry.subkey:
                LOG.info("DB: removing channel(%s) from topic(%s)", entry.subkey, topic)
            else:
                LOG.info("DB: removing topic(%s)", topic)
        return None

    async def topic_tombstone(self, _request: web.Request, query: Query) -> Answer:
        """Hide one producer of a topic for a while."""
        topic = _given(query, "topic", errors.NSQ_HTTP_NO_TOPIC)
        node = _given(query, "node", errors.NSQ_HTTP_NO_NODE)
        LOG.info("DB: setting tombstone for producer@%s of topic(%s)", _clean(node), _clean(topic))
        self.registry.tombstone(topic, node, self.now_ns())
        return None

    async def channel_create(self, _request: web.Request, query: Query) -> Answer:
        """Create the keys of a channel and its topic."""
        topic, channel = _topic_and_channel(query)
        LOG.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        LOG.info("DB: adding topic(%s)", topic)
        self.registry.add(topic, channel)
        return None

    async def channel_delete(self, _request: web.Request, query: Query) -> Answer:
        """Remove a channel."""
        topic, channel = _topic_and_channel(query)
        if not self.registry.remove_channel(topic, channel):
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)
        LOG.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        return None


def _clean(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _given(query: Query, name: str, missing: HttpError) -> str:
    value = query.get(name)
    if value is None:
        raise ApiError(missing)
    return value


def _valid(name: str, error: HttpError) -> None:
    if not is_name(name.encode("utf-8", "surrogateescape")):
        raise ApiError(error)


def _topic_and_channel(query: Query) -> tuple[str, str]:
    topic = _given(query, "topic", errors.NSQ_HTTP_NO_TOPIC)
    _valid(topic, errors.NSQ_HTTP_ARG_TOPIC)
    channel = _given(query, "channel", errors.NSQ_HTTP_NO_CHANNEL)
    _valid(channel, errors.NSQ_HTTP_ARG_CHANNEL)
    return topic, channel


class Guard(Protocol):
    """The interface of broker.net.http.guard."""

    def is_host(self, host: str) -> bool: ...


class LookupConnection(asyncio.Protocol):
    """One HTTP connection: answers plain lookups, passes all else to the general server."""

    def __init__(
        self, api: LookupApi, general: Callable[[], asyncio.Protocol], guard: Guard
    ) -> None:
        self.api = api
        self.answered: Callable[[], None] | None = None  # called after each answer of this class
        self.general: asyncio.Protocol | None = None  # the general server's, once it is needed
        self._guard = guard
        self._make_general = general
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if self.general is None:
            if self._answer(data):
                return
            assert self._transport is not None
            self.general = self._make_general()
            self.general.connection_made(self._transport)
        self.general.data_received(data)

    def _answer(self, data: bytes) -> bool:
        if not data.endswith(_END) or len(data) > limits.NSQ_LOOKUP_HEAD_MAX:
            return False
        request = _PLAIN.fullmatch(data)
        if request is None:
            return False
        hosts = _HOST.findall(data)
        if len(hosts) != 1 or not self._guard.is_host(hosts[0].decode("latin-1")):
            return False
        body = self.api.registry.lookup(request[1].decode(), self.api.now_ns())
        if body is None or self._transport is None:
            return False
        head = b"%b%d\r\n\r\n" % (self.api.date_line.get(), len(body))
        self._transport.writelines((head, body))
        if self.answered is not None:
            self.answered()
        return True

    def pause_writing(self) -> None:
        if self.general is not None:
            self.general.pause_writing()
        elif self._transport is not None:
            self._transport.pause_reading()  # until the client reads its answers

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()
        if self.general is not None:
            self.general.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self.general is not None:
            self.general.connection_lost(error)
