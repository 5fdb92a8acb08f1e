"""nsqlookupd's HTTP API. Source: nsqlookupd/http.go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import errors, limits
from broker.protocols.nsq.http import ApiError, Encoded, Route
from broker.protocols.nsq.wire import is_name

if TYPE_CHECKING:
    from aiohttp import web

    from broker.protocols.nsq.http import Answer, Query, Routes
    from broker.protocols.nsq.lookup.registry import Node, Registry


def _is_named(name: str) -> bool:
    return is_name(name.encode("utf-8", "surrogateescape"))


class LookupApi:
    """The handlers."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def routes(self) -> Routes:
        """Path, method, handler."""
        return {
            "/ping": {"GET": Route(self.ping, versioned=False)},
            "/info": {"GET": Route(self.info)},
            "/lookup": {"GET": Route(self.lookup)},
            "/topics": {"GET": Route(self.topics)},
            "/channels": {"GET": Route(self.channels)},
            "/nodes": {"GET": Route(self.nodes)},
            "/debug": {"GET": Route(self.debug)},
            "/topic/create": {"POST": Route(self.topic_create)},
            "/topic/delete": {"POST": Route(self.topic_delete)},
            "/topic/tombstone": {"POST": Route(self.tombstone)},
            "/channel/create": {"POST": Route(self.channel_create)},
            "/channel/delete": {"POST": Route(self.channel_delete)},
        }

    @staticmethod
    def _topic(query: Query) -> str:
        topic = query.get("topic")
        if topic is None:
            raise ApiError(errors.NSQ_HTTP_NO_TOPIC)
        return topic

    def _topic_and_channel(self, query: Query) -> tuple[str, str]:
        topic = self._topic(query)
        if not _is_named(topic):
            raise ApiError(errors.NSQ_HTTP_ARG_TOPIC)
        channel = query.get("channel")
        if channel is None:
            raise ApiError(errors.NSQ_HTTP_NO_CHANNEL)
        if not _is_named(channel):
            raise ApiError(errors.NSQ_HTTP_ARG_CHANNEL)
        return topic, channel

    async def ping(self, _request: web.Request, _query: Query) -> Answer:
        """It is there."""
        return "OK"

    async def info(self, _request: web.Request, _query: Query) -> Answer:
        """What it is."""
        return {"version": limits.NSQ_VERSION}

    async def lookup(self, _request: web.Request, query: Query) -> Answer:
        """Channels and nodes of a topic."""
        answer = self.registry.lookup(self._topic(query))
        if answer is None:
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_TOPIC)
        return Encoded(answer)

    async def topics(self, _request: web.Request, _query: Query) -> Answer:
        """All of them."""
        return {"topics": sorted(self.registry.topics)}

    async def channels(self, _request: web.Request, query: Query) -> Answer:
        """Of one topic; none when it is unknown."""
        topic = self.registry.topics.get(self._topic(query))
        return {"channels": sorted(topic.channels) if topic is not None else []}

    async def nodes(self, _request: web.Request, _query: Query) -> Answer:
        """The nsqds."""
        return {"producers": list(self.registry.node_pages())}

    async def debug(self, _request: web.Request, _query: Query) -> Answer:
        """Everything, as it is kept."""
        pages: dict[str, Any] = {}
        for node in self.registry.nodes:
            pages.setdefault("client::", []).append(self._debug_page(node, 0))
        for name, topic in self.registry.topics.items():
            for node, at in topic.nodes.items():
                pages.setdefault(f"topic:{name}:", []).append(self._debug_page(node, at))
            for channel, holders in topic.channels.items():
                for node in holders:
                    page = self._debug_page(node, 0)
                    pages.setdefault(f"channel:{name}:{channel}", []).append(page)
        return pages

    @staticmethod
    def _debug_page(node: Node, tombstoned_ns: int) -> dict[str, Any]:
        page = node.page()
        del page["remote_address"]
        return {
            "id": node.id,
            **page,
            "last_update": node.seen_ns,
            "tombstoned": tombstoned_ns != 0,
            "tombstoned_at": tombstoned_ns,
        }

    async def topic_create(self, _request: web.Request, query: Query) -> Answer:
        """Let it exist."""
        topic = self._topic(query)
        if not _is_named(topic):
            raise ApiError(errors.NSQ_HTTP_ARG_TOPIC)
        self.registry.create(topic)
        return None

    async def topic_delete(self, _request: web.Request, query: Query) -> Answer:
        """Forget it."""
        self.registry.delete(self._topic(query))
        return None

    async def tombstone(self, _request: web.Request, query: Query) -> Answer:
        """Do not give out a node for a topic for a while."""
        topic, node = self._topic(query), query.get("node")
        if node is None:
            raise ApiError(errors.NSQ_HTTP_NO_NODE)
        self.registry.tombstone(topic, node)
        return None

    async def channel_create(self, _request: web.Request, query: Query) -> Answer:
        """Let it exist, and its topic."""
        self.registry.create(*self._topic_and_channel(query))
        return None

    async def channel_delete(self, _request: web.Request, query: Query) -> Answer:
        """Forget it."""
        if not self.registry.delete_channel(*self._topic_and_channel(query)):
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)
        return None
