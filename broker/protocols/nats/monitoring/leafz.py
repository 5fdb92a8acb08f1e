"""/leafz, /routez, /gatewayz: other servers. Twinwire has no routes or gateways."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from broker.protocols.nats.monitoring import limits
from broker.protocols.nats.monitoring.options import (
    GatewayzOptions,
    LeafzOptions,
    RoutezOptions,
    rfc3339,
    round_trip,
    text,
)
from broker.protocols.nats.views import links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.protocols.nats.views import Link, ServerView


def leafz(server: ServerView, options: LeafzOptions) -> dict[str, Any]:
    """Leaf nodes of this server, and the servers that it is a leaf node of."""
    shown = [
        link
        for link in links(server)
        if not options.account
        or (link.account is not None and link.account.name == options.account)
    ]
    most = limits.MONITOR_SUBSCRIPTIONS_WHOLE if options.subscriptions else 0
    return {
        "server_id": server.server_id,
        "now": rfc3339(time.time_ns()),
        "leafnodes": len(shown),
        "leafs": list(_leafs(shown, most)),
    }


def _leafs(shown: list[Link], most: int) -> Iterator[dict[str, Any]]:
    """The entries, with up to `most` subscriptions for all of them together."""
    for link in shown:
        page = leaf_facts(link)
        if most and link.subscriptions:
            listed = link.list_subs(min(most, limits.MONITOR_SUBSCRIPTIONS_EACH))
            page["subscriptions_list"] = [text(sub[0]) for sub in listed]
            most -= len(listed)
        yield page


def leaf_facts(link: Link) -> dict[str, Any]:
    """One leaf link, without its subscriptions."""
    proxy_key = link.identity.proxy_key if link.identity is not None else ""
    return {
        "id": link.client_id,
        "name": link.remote_name,
        "is_spoke": link.is_spoke,
        **({"is_isolated": True} if link.isolated else {}),
        "account": link.account.name if link.account is not None else "",
        "ip": link.host,
        "port": link.port,
        "rtt": round_trip(link.rtt_ns),
        "in_msgs": link.in_msgs,
        "out_msgs": link.out_msgs,
        "in_bytes": link.in_bytes,
        "out_bytes": link.out_bytes,
        "subscriptions": link.subscriptions,
        **({"compression": link.compression} if link.compression else {}),
        **({"proxy": {"key": proxy_key}} if proxy_key else {}),
    }


def routez(server: ServerView, _options: RoutezOptions) -> dict[str, Any]:
    """The page without routes."""
    return {
        "server_id": server.server_id,
        "server_name": server.server_name,
        "now": rfc3339(time.time_ns()),
        "num_routes": 0,
        "routes": [],
    }


def gatewayz(server: ServerView, _options: GatewayzOptions) -> dict[str, Any]:
    """The page without gateways."""
    return {
        "server_id": server.server_id,
        "now": rfc3339(time.time_ns()),
        "outbound_gateways": {},
        "inbound_gateways": {},
    }
