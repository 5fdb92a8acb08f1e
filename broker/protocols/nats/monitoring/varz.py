"""/varz: identity, configuration and traffic of the server; /healthz and /jsz."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from broker import __version__
from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.protocols.nats import limits
from broker.protocols.nats.monitoring import errors
from broker.protocols.nats.monitoring.jwt import operator_facts
from broker.protocols.nats.monitoring.options import (
    HealthzOptions,
    JszOptions,
    PageError,
    filled,
    number,
    rfc3339,
    seconds,
    uptime,
)
from broker.protocols.nats.monitoring.process import CpuMeter, resident_bytes
from broker.protocols.nats.settings import WRITE_TIMEOUTS
from broker.protocols.nats.views import links, subscription_count

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from broker.protocols.nats.settings import Authorization, Leafnodes, Remote, Tls, Websocket
    from broker.protocols.nats.views import ServerView

_PROTO = 1  # of the client protocol
_OK: Final = 200
_BAD_REQUEST: Final = 400
_FAILED: Final = 500
_UNAVAILABLE: Final = 503


def varz(server: ServerView, cpu: CpuMeter, requests: Counter[str]) -> dict[str, Any]:
    """The page; `requests`: the number of requests to each page."""
    now_ns = time.time_ns()
    page = _identity(server) | _configured(server) | _current(server, now_ns, cpu)
    page |= {
        "http_req_stats": dict(sorted(requests.items())),
        "config_load_time": rfc3339(server.reload_ns),
        "config_digest": server.settings.digest,
    }
    page |= _operator_fields(server)
    page["slow_consumer_stats"] = _of_clients(server.frontend.slow_consumers)
    page["stale_connection_stats"] = _of_clients(server.frontend.stale)
    page["disk_io_wait_stats"] = dict.fromkeys(
        ("waiters", "waits", "wait_time", "max_wait_time"), 0
    )
    return page


def _of_clients(count: int) -> dict[str, int]:
    return {"clients": count, "routes": 0, "gateways": 0, "leafs": 0}


def _identity(server: ServerView) -> dict[str, Any]:
    info = server.handshake.info
    host, port = server.ports.get("nats", ("", 0))
    # With a no_auth_user, INFO requires no login, although users exist.
    required = {"auth_required": True} if server.settings.no_auth_user else {}
    page: dict[str, Any] = {
        "server_id": server.server_id,
        "server_name": server.server_name,
        "version": limits.NATS_VERSION,
        "proto": _PROTO,
        # Go tools print this; it names the Python version.
        "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
        "twinwire": __version__,
        "host": info.get("host") or host,
        "port": info.get("port") or port,
    }
    names = ("auth_required", "tls_required", "tls_verify", "ip", "connect_urls")
    page |= filled({name: info.get(name, "") for name in (*names, "ws_connect_urls")} | required)
    return page


def _configured(server: ServerView) -> dict[str, Any]:
    settings = server.settings
    address, pages = settings.http or settings.https, _page_ports(server)
    page: dict[str, Any] = {"max_connections": settings.max_connections}
    if settings.max_subscriptions:
        page["max_subscriptions"] = settings.max_subscriptions
    page |= {
        "ping_interval": settings.ping_interval_ns,
        "ping_max": settings.ping_max,
        "http_host": address[0] if address is not None else settings.address[0],
        "http_port": pages.get("http", 0),
        "http_base_path": settings.http_base_path,
        "https_port": pages.get("https", 0),
        "auth_timeout": _auth_timeout(settings.authorization, settings.tls),
        "max_control_line": settings.max_control_line,
        "max_payload": settings.max_payload,
        "max_pending": settings.max_pending,
        "cluster": filled({"name": settings.cluster}),
        "gateway": {},
        "leaf": _leaf(server, settings.leafnodes),
        "mqtt": {},
        "websocket": _websocket(server, settings.websocket),
        "jetstream": {} if server.jetstream is None else server.jetstream.varz(),
        "tls_timeout": seconds(
            settings.tls.timeout_ns if settings.tls else limits.NATS_TLS_TIMEOUT
        ),
        "write_deadline": settings.write_deadline_ns,
    }
    if settings.write_timeout != WRITE_TIMEOUTS[0]:
        page["write_timeout"] = settings.write_timeout
    if settings.trusted_proxies:
        page["proxies"] = {"trusted": [{"key": key} for key in settings.trusted_proxies]}
    return page


def _page_ports(server: ServerView) -> dict[str, int]:
    """The ports of the monitoring listener, by scheme."""
    settings = server.settings
    if settings.http is not None and settings.https is not None:
        names = {"http": "monitor", "https": "monitor_https"}
    else:
        names = {"https" if settings.https is not None else "http": "monitor"}
    return {kind: server.ports[name][1] for kind, name in names.items() if name in server.ports}


def _current(server: ServerView, now_ns: int, cpu: CpuMeter) -> dict[str, Any]:
    in_msgs, in_bytes, out_msgs, out_bytes = server.frontend.traffic()
    clients = (in_msgs, in_bytes, out_msgs, out_bytes)
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
        "total_connections": server.frontend.total_connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": len(leafs),
        "in_msgs": in_msgs,
        "in_bytes": in_bytes,
        "in_client_msgs": clients[0],
        "in_client_bytes": clients[1],
        "out_msgs": out_msgs,
        "out_bytes": out_bytes,
        "out_client_msgs": clients[2],
        "out_client_bytes": clients[3],
        "slow_consumers": server.frontend.slow_consumers,
        "stale_connections": server.frontend.stale,
        "stalled_clients": server.frontend.stalls,
        "subscriptions": subscription_count(server),
    }


def _operator_fields(server: ServerView) -> dict[str, Any]:
    system = server.system_account
    settings = server.settings
    own = {"tags": list(settings.server_tags), "metadata": dict(sorted(settings.server_metadata))}
    page = filled(own) | operator_facts(server)
    page["feature_flags"] = settings.flags
    return page | filled({"system_account": system.name if system is not None else ""})


def _auth_timeout(authorization: Authorization | None, tls: Tls | None) -> float:
    if authorization is not None and authorization.timeout_ns:
        return seconds(authorization.timeout_ns)
    return seconds(tls.timeout_ns + SECOND if tls else limits.NATS_AUTH_TIMEOUT)


def _leaf(server: ServerView, settings: Leafnodes | None) -> dict[str, Any]:
    if settings is None:
        return {}
    page: dict[str, Any] = {}
    if settings.listen is not None:
        page |= filled(
            {
                "host": settings.listen[0],
                "port": server.ports.get("leafnodes", settings.listen)[1],
                "auth_timeout": _auth_timeout(settings.authorization, settings.tls),
                "tls_timeout": seconds(settings.tls.timeout_ns if settings.tls else SECOND * 2),
                "tls_required": settings.tls is not None,
                "tls_verify": settings.tls is not None and settings.tls.verify,
            }
        )
    if settings.remotes:
        page["remotes"] = [_remote(remote) for remote in settings.remotes]
    return page


def _remote(remote: Remote) -> dict[str, Any]:
    deny = filled({"exports": list(remote.deny_exports), "imports": list(remote.deny_imports)})
    return filled(
        {
            "local_account": remote.account,
            "tls_timeout": seconds(remote.tls.timeout_ns) if remote.tls else 0,
            "urls": [_address(url) for url in remote.urls],  # without the password in it
            "deny": deny,
        }
    )


def _address(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.netloc.rpartition("@")[2]


def _websocket(server: ServerView, settings: Websocket | None) -> dict[str, Any]:
    if settings is None:
        return {}
    login = settings.authorization
    tls = settings.tls
    fields: Mapping[str, Any] = {
        "host": settings.listen[0],
        "port": server.ports.get("websocket", settings.listen)[1],
        "advertise": settings.advertise,
        "no_auth_user": settings.no_auth_user,
        "jwt_cookie": settings.jwt_cookie,
        "handshake_timeout": settings.handshake_timeout_ns,
        "auth_timeout": seconds(login.timeout_ns) if login is not None else 0,
        "no_tls": tls is None,
        "tls_map": tls is not None and tls.verify_and_map,
        "tls_pinned_certs": sorted(tls.pinned_certs) if tls is not None else [],
        "same_origin": settings.same_origin,
        "allowed_origins": list(settings.allowed_origins),
        "compression": settings.compression,
    }
    return filled(fields)


@dataclass(frozen=True, slots=True)
class Health:
    """An answer, with its status for HTTP."""

    page: dict[str, Any]
    code: int  # over HTTP, and in the system account


def healthz(
    server: ServerView, options: HealthzOptions, broken: Callable[[], str | None]
) -> Health:
    """`broken` returns another problem of this process, or None."""
    if options.stream and not options.account:
        return _wrong(options, _BAD_REQUEST, "error", "BAD_REQUEST", errors.STREAM_ALONE)
    if options.consumer and not options.stream:
        return _wrong(options, _BAD_REQUEST, "error", "BAD_REQUEST", errors.CONSUMER_ALONE)
    if server.lame or server.starting:
        text = errors.NOT_READY.format("server")
        return _wrong(options, _FAILED, "error", "CONNECTION", text)
    problem = broken()
    if problem is not None:
        # the kind for stored messages, which Go programs recognize
        return _wrong(options, _UNAVAILABLE, "unavailable", "JETSTREAM", problem)
    return _jetstream(server, options) or Health({"status": "ok"}, _OK)


def _jetstream(server: ServerView, options: HealthzOptions) -> Health | None:
    """A failed check of JetStream; None if it has no problem or is disabled."""
    found = server.jetstream.problem(options) if server.jetstream is not None else None
    return None if found is None else _failed(options, *found)


def _wrong(options: HealthzOptions, code: int, status: str, kind: str, text: str) -> Health:
    if options.details:
        return Health({"status": "error", "errors": [{"type": kind, "error": text}]}, code)
    return Health({"status": status, "error": text}, code)


def _failed(options: HealthzOptions, code: int, row: dict[str, str]) -> Health:
    """A failed check of one part of JetStream."""
    if options.details:
        return Health({"status": "error", "errors": [row]}, code)
    return Health({"status": "unavailable", "error": row["error"]}, code)


def jsz(server: ServerView, options: JszOptions) -> dict[str, Any]:
    """The page about JetStream, also of a server without it."""
    if server.jetstream is not None:
        return server.jetstream.jsz(options)
    if options.leader_only:
        raise PageError(errors.NOT_LEADER)
    return {
        "memory": 0,
        "storage": 0,
        "reserved_memory": 0,
        "reserved_storage": 0,
        "accounts": 0,
        "ha_assets": 0,
        "api": {"level": 0, "total": 0, "errors": 0},
        "server_id": server.server_id,
        "now": rfc3339(time.time_ns()),
        "disabled": True,
        "config": {"max_memory": 0, "max_storage": 0},
        "streams": 0,
        "consumers": 0,
        "messages": 0,
        "bytes": 0,
        "total": 0,
    }
