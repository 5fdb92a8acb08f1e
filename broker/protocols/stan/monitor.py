"""The pages below /streaming on the monitoring listener, as in nats-streaming-server 0.25.6."""

from __future__ import annotations

import html
import re
import resource
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from broker.net.listener import open_files
from broker.protocols.nats.monitoring import errors
from broker.protocols.nats.monitoring.http import json_answer
from broker.protocols.nats.monitoring.options import encode, filled, rfc3339, uptime
from broker.protocols.stan import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.protocols.nats.monitoring.http import Handler
    from broker.protocols.stan.publish import Channel, Client, Subscription
    from broker.protocols.stan.streaming import Streaming

    Json = dict[str, Any]

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_ERROR_HEADERS: Final = {
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
}
_LINKS: Final = ("serverz", "storez", "clientsz", "channelsz")
_FRONT: Final = """<!doctype html>
<html lang="en">
<head><title>NATS Streaming</title></head>
<body>
<h1>NATS Streaming: {cluster}</h1>
{links}
</body>
</html>
"""


class StreamingPages:
    """The pages of one service; they answer 503 until it runs."""

    def __init__(self, find: Callable[[], Streaming | None]) -> None:
        self._find = find

    @property
    def service(self) -> Streaming:
        """The running service."""
        found = self._find()
        if found is None:
            raise web.HTTPServiceUnavailable(text=errors.NO_STREAMING)
        return found

    def handlers(self) -> dict[str, Handler]:
        """The path and handler of each page."""
        return {
            "/streaming": self._front,
            "/streaming/serverz": self._serverz,
            "/streaming/storez": self._storez,
            "/streaming/clientsz": self._clientsz,
            "/streaming/channelsz": self._channelsz,
            "/streaming/isFTActive": self._is_ft_active,
        }

    async def _front(self, _request: web.Request) -> web.StreamResponse:
        links = "\n".join(f'<a href="./streaming/{page}">{page}</a>' for page in _LINKS)
        cluster = html.escape(self.service.settings.cluster_id)
        page = _FRONT.format(cluster=cluster, links=links)
        return web.Response(text=page, content_type="text/html")

    async def _serverz(self, _request: web.Request) -> web.StreamResponse:
        return json_answer(encode(self.serverz()))

    async def _storez(self, _request: web.Request) -> web.StreamResponse:
        return json_answer(encode(self.storez()))

    async def _clientsz(self, request: web.Request) -> web.StreamResponse:
        with_subs = _number(request, "subs") == 1
        name = request.query.get("client", "")
        if name:
            client = self.service.clients.get(name)
            if client is None:
                return _not_found(errors.NO_CLIENT.format(name))
            return json_answer(encode(self.client(client, with_subs=with_subs)))
        return json_answer(encode(self.clientsz(*_page(request), with_subs=with_subs)))

    async def _channelsz(self, request: web.Request) -> web.StreamResponse:
        with_subs = _number(request, "subs") == 1
        name = request.query.get("channel", "")
        if name:
            channel = self.service.channels.get(name)
            if channel is None:
                return _not_found(errors.NO_CHANNEL.format(name))
            return json_answer(encode(self.channel(channel, with_subs=with_subs)))
        return json_answer(encode(self.channelsz(*_page(request), with_subs=with_subs)))

    async def _is_ft_active(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=204)  # no fault-tolerance groups

    # --- contents

    def serverz(self) -> Json:
        """The page about the server as a whole."""
        service, now_ns = self.service, time.time_ns()
        page = {
            **self._names(),
            "version": limits.STAN_VERSION,
            "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
            "state": "STANDALONE",
            "now": rfc3339(now_ns),
            "start_time": rfc3339(service.start_ns),
            "uptime": uptime(now_ns - service.start_ns),
            "clients": len(service.clients),
            "subscriptions": sum(len(c.subscriptions) for c in service.channels.values()),
            "channels": len(service.channels),
            **self._totals(),
            "in_msgs": service.in_msgs,
            "in_bytes": service.in_bytes,
            "out_msgs": service.out_msgs,
            "out_bytes": service.out_bytes,
        }
        return page | _open_files()

    def storez(self) -> Json:
        """The page of limits and stored totals."""
        settings = self.service.settings
        bounds: Json = {"max_channels": settings.max_channels, **_limits(settings.limits)}
        if overrides := settings.patterns():
            bounds["channels"] = {name: _limits(each) for name, each in sorted(overrides)}
        return {
            **self._names(),
            "now": rfc3339(time.time_ns()),
            "type": settings.store.upper(),
            "limits": bounds,
            **self._totals(),
        }

    def clientsz(self, offset: int, limit: int, *, with_subs: bool) -> Json:
        """A page of clients in order of name."""
        clients = self.service.clients
        shown = sorted(clients)[offset : offset + limit]
        subs = self._by_client() if with_subs else None
        return {
            **self._list(offset, limit, len(shown), len(clients)),
            "clients": [_client(clients[name], subs) for name in shown],
        }

    def client(self, client: Client, *, with_subs: bool) -> Json:
        """The facts about one client."""
        return _client(client, self._by_client() if with_subs else None)

    def channelsz(self, offset: int, limit: int, *, with_subs: bool) -> Json:
        """A page of channels in order of name: their names, or all facts."""
        channels = self.service.channels
        shown = sorted(channels)[offset : offset + limit]
        page = self._list(offset, limit, len(shown), len(channels))
        if with_subs:
            entries = [self.channel(channels[name], with_subs=True) for name in shown]
            return page | filled({"channels": entries})
        return page | filled({"names": shown})

    def channel(self, channel: Channel, *, with_subs: bool) -> Json:
        """The facts about one channel."""
        page: Json = {
            "name": channel.name,
            "msgs": channel.msgs,
            "bytes": channel.bytes,
            "first_seq": channel.first_seq,
            "last_seq": channel.last_seq,
            "subs_count": len(channel.subscriptions),
        }
        if with_subs:
            shown = sorted(channel.subscriptions, key=_rank)
            page |= filled({"subscriptions": [_subscription(sub) for sub in shown]})
        return page

    def _names(self) -> Json:
        return {
            "cluster_id": self.service.settings.cluster_id,
            "server_id": self.service.server_id,
        }

    def _list(self, offset: int, limit: int, count: int, total: int) -> Json:
        return {
            **self._names(),
            "now": rfc3339(time.time_ns()),
            "offset": offset,
            "limit": limit,
            "count": count,
            "total": total,
        }

    def _totals(self) -> Json:
        channels = self.service.channels.values()
        return {
            "total_msgs": sum(channel.msgs for channel in channels),
            "total_bytes": sum(channel.bytes for channel in channels),
        }

    def _by_client(self) -> Mapping[str, Mapping[str, list[Json]]]:
        """Subscriptions by client, then by channel."""
        found: dict[str, dict[str, list[Json]]] = defaultdict(lambda: defaultdict(list))
        for name, channel in sorted(self.service.channels.items()):
            for sub in channel.subscriptions:
                if not sub.is_offline:
                    found[sub.record.client_id][name].append(_subscription(sub))
        return found


def _client(client: Client, subs: Mapping[str, Mapping[str, list[Json]]] | None) -> Json:
    page: Json = {
        "id": client.client_id,
        "hb_inbox": client.hb_inbox,
        "subs_count": len(client.subscriptions),
    }
    own = subs.get(client.client_id) if subs is not None else None
    return page | filled({"subscriptions": dict(own or {})})


def _rank(sub: Subscription) -> tuple[bool, bool]:
    """The sort key: plain and active durables, then offline durables, then queue groups."""
    return bool(sub.record.queue_name), sub.is_offline


def _subscription(sub: Subscription) -> Json:
    record = sub.record
    durable = "" if record.queue_name else record.durable_name  # a group's name contains it
    return {
        "client_id": record.client_id,
        "inbox": record.inbox,
        "ack_inbox": record.ack_inbox,
        **filled({"durable_name": durable, "queue_name": record.queue_name}),
        "is_durable": record.is_durable,
        "is_offline": sub.is_offline,
        "max_inflight": record.max_in_flight,
        "ack_wait": record.ack_wait,
        "last_sent": sub.last_sent or max(sub.cursor.next_seq - 1, 0),
        "pending_count": sub.pending_count,
        "is_stalled": sub.is_stalled,
    }


def _limits(bounds: Any) -> Json:
    return {
        "max_msgs": bounds.max_msgs,
        "max_bytes": bounds.max_bytes,
        "max_age": bounds.max_age_ns,
        "max_subscriptions": bounds.max_subs,
        "max_inactivity": bounds.max_inactivity_ns,
    }


def _open_files() -> Json:
    try:
        count = open_files()
    except OSError:
        return {}  # the system has no such folder
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return filled({"open_fds": count, "max_fds": max(soft, 0)})


def _page(request: web.Request) -> tuple[int, int]:
    """The offset and limit; invalid numbers are ignored."""
    limit = _number(request, "limit")
    return max(_number(request, "offset"), 0), limit if limit > 0 else limits.STAN_MONITOR_LIMIT


def _number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else 0


def _not_found(text: str) -> web.Response:
    return web.Response(status=404, body=f"{text}\n".encode(), headers=_ERROR_HEADERS)
