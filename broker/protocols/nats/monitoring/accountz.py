"""/accountz: all accounts, or the details of one. /accstatz: the traffic of each."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from broker.base.units import SECOND
from broker.protocols.nats.accounts.import_rules import local_subject, system_exports
from broker.protocols.nats.accounts.subjects import numbered
from broker.protocols.nats.monitoring import errors
from broker.protocols.nats.monitoring.jwt import account_facts, known
from broker.protocols.nats.monitoring.options import (
    AccountzOptions,
    AccstatzOptions,
    PageError,
    filled,
    rfc3339,
)
from broker.protocols.nats.monitoring.subsz import counts
from broker.protocols.nats.settings import GLOBAL_ACCOUNT, Export, Import

if TYPE_CHECKING:
    from broker.protocols.nats.settings import Mapping
    from broker.protocols.nats.views import AccountView, ServerView

# nats-server shows this import while JetStream is enabled, also for accounts without JetStream.
_JETSTREAM_API = "$JS.API.>"
_RESPONSES = {"singleton": "Singleton", "stream": "Streamed", "chunked": "Chunked"}


def accountz(server: ServerView, options: AccountzOptions) -> dict[str, Any]:
    """The names of all accounts, or one in detail; PageError if it does not exist."""
    page: dict[str, Any] = {"server_id": server.server_id, "now": rfc3339(time.time_ns())}
    if server.system_account is not None:
        page["system_account"] = server.system_account.name
    if options.account:
        return page | {"account_detail": account_info(server, options.account)}
    if server.accounts:
        page["accounts"] = list(server.accounts)
    return page


def account_info(server: ServerView, name: str) -> dict[str, Any]:
    """All details of one account."""
    account = server.accounts.get(name)
    if account is None:
        raise PageError(errors.NO_ACCOUNT.format(name))
    config, token = account.config, known(server, name)
    mappings: tuple[Mapping, ...] = config.mappings if config is not None else ()
    if name == GLOBAL_ACCOUNT:
        mappings = (*server.settings.mappings, *mappings)
    page: dict[str, Any] = {
        "account_name": name,
        "update_time": rfc3339(int(token.fetched * SECOND) if token else server.reload_ns),
    }
    if account is server.system_account:
        page["is_system"] = True
    page |= {
        "expired": token is not None and token.expired(time.time()),
        "complete": True,
        "jetstream_enabled": server.jetstream is not None and server.jetstream.serves(name),
        "leafnode_connections": len(account.leafs),
        "client_connections": len(account.sessions),
        "subscriptions": account.router.size,
    }
    page |= filled(
        {
            "mappings": {mapping.source: _destinations(mapping) for mapping in mappings},
            "exports": [_export(it) for it in sorted(_exports(server, account), key=_is_stream)],
            "imports": [_import(it) for it in sorted(_imports(server, account), key=_is_service)],
        }
    )
    page |= {"name_tag": name} if token is None else account_facts(token)
    return page | {"sublist_stats": counts((account.router,))}


def _is_stream(it: Export) -> bool:
    return not it.service


def _is_service(it: Import) -> bool:
    return it.service


def _exports(server: ServerView, account: AccountView) -> tuple[Export, ...]:
    """The configured exports, and the implicit ones of the system account."""
    exports = account.config.exports if account.config is not None else ()
    if account is not server.system_account:
        return exports
    own = (*exports, *system_exports(exports))
    return own if server.jetstream is None else (*own, Export(_JETSTREAM_API, service=True))


def _imports(server: ServerView, account: AccountView) -> tuple[Import, ...]:
    imports = account.config.imports if account.config is not None else ()
    system = server.system_account
    if system is None:
        return imports
    about = f"$SYS.REQ.ACCOUNT.{account.name}"
    user = Import(
        system.name,
        f"$SYS.REQ.USER.{account.name}.INFO",
        service=True,
        to="$SYS.REQ.USER.INFO",
        share=True,
    )
    if account is system:
        return (*imports, user)
    own = [
        Import(system.name, f"{about}.{what}", service=True, to=f"$SYS.REQ.{level}.PING.{what}")
        for level, what in (("ACCOUNT", "CONNZ"), ("SERVER", "CONNZ"), ("ACCOUNT", "STATZ"))
    ]
    if server.jetstream is not None:
        own.append(Import(system.name, _JETSTREAM_API, service=True, share=True))
    configured = {it.to or it.subject for it in imports if it.service}
    return (*imports, *(it for it in (*own, user) if local_subject(it) not in configured))


def _destinations(mapping: Mapping) -> list[dict[str, Any]]:
    """Destinations by ascending weight, with cumulated weights, as in the original."""
    by_cluster: dict[str, list[tuple[int, str]]] = {"": []}
    for to in mapping.destinations:
        by_cluster.setdefault(to.cluster, []).append((to.weight, to.subject))
    named = {to.subject for to in mapping.destinations}
    shown = []
    for cluster, shares in by_cluster.items():
        rest = 100 - sum(weight for weight, _ in shares)
        if rest and mapping.source not in named:
            shares.append((rest, numbered(mapping.source)))
        below = 0
        for weight, subject in sorted(shares, key=itemgetter(0)):
            below += weight
            page: dict[str, Any] = {"subject": subject, "weight": below}
            shown.append(page | filled({"cluster": cluster}))
    return shown


def _export(it: Export) -> dict[str, Any]:
    page: dict[str, Any] = {
        "subject": it.subject,
        "type": "service" if it.service else "stream",
    }
    if it.accounts is not None and not it.accounts:
        page["token_req"] = True
    if it.service:
        page["response_type"] = _RESPONSES.get(it.response_type, it.response_type)
        if it.latency_subject:
            sampling = "headers" if it.latency_sampling < 0 else it.latency_sampling
            page["service_latency"] = {"sampling": sampling, "results": it.latency_subject}
    return page | filled({"approved_accounts": list(it.accounts or ())})


def _import(it: Import) -> dict[str, Any]:
    page: dict[str, Any] = {"subject": it.subject, "account": it.account}
    local = local_subject(it)
    if it.service:
        page |= {"to": local, "local_subject": local, "type": "service"}
    else:
        page |= {"local_subject": local, "type": "stream"}
    return page | {"invalid": False, "share": it.share, "tracking": False}


def accstatz(server: ServerView, options: AccstatzOptions) -> dict[str, Any]:
    """The traffic of accounts with connections, or of all."""
    named = [server.accounts[name] for name in options.accounts if name in server.accounts]
    shown = [
        account_stat(account)
        for account in (named if options.accounts else server.accounts.values())
        if options.include_unused or account.sessions or account.leafs
    ]
    return {
        "server_id": server.server_id,
        "now": rfc3339(time.time_ns()),
        "account_statz": shown,
    }


def account_stat(account: AccountView) -> dict[str, Any]:
    """The traffic of one account; `received`: from its clients."""
    in_msgs, in_bytes, out_msgs, out_bytes = account.traffic()
    leafs = account.leaf_traffic()
    return {
        "acc": account.name,
        "name": account.name,
        "conns": len(account.sessions),
        "leafnodes": len(account.leafs),
        "total_conns": len(account.sessions) + len(account.leafs),
        "num_subscriptions": account.router.size,
        "sent": _traffic(out_msgs, out_bytes, leafs[2:]),
        "received": _traffic(in_msgs, in_bytes, leafs[:2]),
        "slow_consumers": account.slow_consumers,
    }


def _traffic(msgs: int, size: int, leafs: tuple[int, ...]) -> dict[str, Any]:
    """Messages and bytes of all connections, and those of leaf nodes among them."""
    none = {"msgs": 0, "bytes": 0}
    return {
        "msgs": msgs,
        "bytes": size,
        "gateways": none,
        "routes": none,
        "leafs": {"msgs": leafs[0], "bytes": leafs[1]},
    }
