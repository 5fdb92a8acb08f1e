"""/varz: who the server is, what it was told, how much it does."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from broker import __version__
from broker.base.units import SECOND
from broker.protocols.nats import limits
from broker.protocols.nats.monitoring.jwt import operator_facts
from broker.protocols.nats.monitoring.process import CpuMeter, resident_bytes
from broker.protocols.nats.monitoring.text import filled, number, rfc3339, seconds, uptime
from broker.protocols.nats.views import links, subscription_count

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from broker.protocols.nats.settings import Authorization, Leafnodes, Remote, Tls, Websocket
    from broker.protocols.nats.views import ServerView

_PROTO = 1  # of the client protocol


def varz(server: ServerView, cpu: CpuMeter, requests: Counter[str]) -> dict[str, Any]:
    """The page; `requests` counts those to each page."""
    now_ns = time.time_ns()
    page = _who(server) | _told(server) | _now(server, now_ns, cpu)
    page |= {
        "http_req_stats": dict(sorted(requests.items())),
        "config_load_time": rfc3339(server.reload_ns),
    }
    page |= _trust(server)
    page["slow_consumer_stats"] = {
        "clients": server.face.slow_consumers,
        "routes": 0,
        "gateways": 0,
        "leafs": 0,
    }
    return page


def _who(server: ServerView) -> dict[str, Any]:
    info = server.gate.info
    host, port = server.ports.get("nats", ("", 0))
    # With a user for those who say nothing INFO asks nobody, but there are users all the same.
    asks = {"auth_required": True} if server.settings.no_auth_user else {}
    page: dict[str, Any] = {
        "server_id": server.server_id,
        "server_name": server.server_name,
        "version": limits.NATS_VERSION,
        "proto": _PROTO,
        # Go tools print this; there is no Go here, so it names what runs us.
        "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
        "twinwire": __version__,
        "host": info.get("host") or host,
        "port": info.get("port") or port,
    }
    names = ("auth_required", "tls_required", "tls_verify", "ip", "connect_urls")
    page |= filled({name: info.get(name, "") for name in (*names, "ws_connect_urls")} | asks)
    return page


def _told(server: ServerView) -> dict[str, Any]:
    told = server.settings
    asked, pages = told.http or told.https, _page_ports(server)
    page: dict[str, Any] = {"max_connections": told.max_connections}
    if told.max_subscriptions:
        page["max_subscriptions"] = told.max_subscriptions
    page |= {
        "ping_interval": told.ping_interval_ns,
        "ping_max": told.ping_max,
        "http_host": asked[0] if asked is not None else told.listen[0],
        "http_port": pages.get("http", 0),
        "http_base_path": told.http_base_path,
        "https_port": pages.get("https", 0),
        "auth_timeout": _auth_timeout(told.authorization, told.tls),
        "max_control_line": told.max_control_line,
        "max_payload": told.max_payload,
        "max_pending": told.max_pending,
        "cluster": filled({"name": told.cluster}),
        "gateway": {},
        "leaf": _leaf(server, told.leafnodes),
        "mqtt": {},
        "websocket": _websocket(server, told.websocket),
        "jetstream": {},
        "tls_timeout": seconds(told.tls.timeout_ns if told.tls else limits.NATS_TLS_TIMEOUT),
        "write_deadline": told.write_deadline_ns,
    }
    return page


def _page_ports(server: ServerView) -> dict[str, int]:
    """Where the monitoring door is, by scheme."""
    told = server.settings
    if told.http is not None and told.https is not None:
        names = {"http": "monitor", "https": "monitor_https"}
    else:
        names = {"https" if told.https is not None else "http": "monitor"}
    return {kind: server.ports[name][1] for kind, name in names.items() if name in server.ports}


def _now(server: ServerView, now_ns: int, cpu: CpuMeter) -> dict[str, Any]:
    in_msgs, in_bytes, out_msgs, out_bytes = server.face.traffic()
    leafs = list(links(server))
    for leaf in leafs:
        in_msgs += leaf.in_msgs
        in_bytes += leaf.in_bytes
        out_msgs += leaf.out_msgs
        out_bytes += leaf.out_bytes
    return {
        "start": rfc3339(server.start_ns),
        "now": rfc3339(now_ns),
        "uptime": uptime(now_ns - server.start_ns),
        "mem": resident_bytes(),
        "cores": os.cpu_count() or 1,
        "gomaxprocs": 1,  # messages are handled by one thread
        "cpu": number(cpu.percent()),
        "connections": len(server.sessions),
        "total_connections": server.face.total_connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": len(leafs),
        "in_msgs": in_msgs,
        "out_msgs": out_msgs,
        "in_bytes": in_bytes,
        "out_bytes": out_bytes,
        "slow_consumers": server.face.slow_consumers,
        "subscriptions": subscription_count(server),
    }


def _trust(server: ServerView) -> dict[str, Any]:
    system = server.system_account
    page = filled({"tags": list(server.settings.server_tags)}) | operator_facts(server)
    return page | filled({"system_account": system.name if system is not None else ""})


def _auth_timeout(authorization: Authorization | None, tls: Tls | None) -> float:
    if authorization is not None and authorization.timeout_ns:
        return seconds(authorization.timeout_ns)
    return seconds(tls.timeout_ns + SECOND if tls else limits.NATS_AUTH_TIMEOUT)


def _leaf(server: ServerView, told: Leafnodes | None) -> dict[str, Any]:
    if told is None:
        return {}
    page: dict[str, Any] = {}
    if told.listen is not None:
        page |= filled(
            {
                "host": told.listen[0],
                "port": server.ports.get("leafnodes", told.listen)[1],
                "auth_timeout": _auth_timeout(told.authorization, told.tls),
                "tls_timeout": seconds(told.tls.timeout_ns if told.tls else SECOND * 2),
                "tls_required": told.tls is not None,
                "tls_verify": told.tls is not None and told.tls.verify,
            }
        )
    if told.remotes:
        page["remotes"] = [_remote(remote) for remote in told.remotes]
    return page


def _remote(told: Remote) -> dict[str, Any]:
    deny = filled({"exports": list(told.deny_exports), "imports": list(told.deny_imports)})
    return filled(
        {
            "local_account": told.account,
            "tls_timeout": seconds(told.tls.timeout_ns) if told.tls else 0,
            "urls": [_address(url) for url in told.urls],  # without the password in it
            "deny": deny,
        }
    )


def _address(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.netloc.rpartition("@")[2]


def _websocket(server: ServerView, told: Websocket | None) -> dict[str, Any]:
    if told is None:
        return {}
    login = told.authorization
    tls = told.tls
    fields: Mapping[str, Any] = {
        "host": told.listen[0],
        "port": server.ports.get("websocket", told.listen)[1],
        "advertise": told.advertise,
        "no_auth_user": told.no_auth_user,
        "jwt_cookie": told.jwt_cookie,
        "handshake_timeout": told.handshake_timeout_ns,
        "auth_timeout": seconds(login.timeout_ns) if login is not None else 0,
        "no_tls": tls is None,
        "tls_map": tls is not None and tls.verify_and_map,
        "tls_pinned_certs": sorted(tls.pinned_certs) if tls is not None else [],
        "same_origin": told.same_origin,
        "allowed_origins": list(told.allowed_origins),
        "compression": told.compression,
    }
    return filled(fields)
