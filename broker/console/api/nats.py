"""The NATS server: connections, subscriptions, accounts, leaf nodes; from its monitoring pages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from broker.base.units import MS, SECOND
from broker.console import errors
from broker.console.errors import RefusedError
from broker.console.pauses import Pauses
from broker.protocols.nats.monitoring.accountz import account_stat
from broker.protocols.nats.monitoring.options import ANY, CLOSED, OPEN, ConnzOptions
from broker.protocols.nats.service import NatsService
from broker.protocols.nats.views import links, subscription_count
from broker.routing.router import count_local, window

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.protocols.nats.server import NatsServer
    from broker.protocols.nats.views import AccountView

    Json = dict[str, Any]

_STATES = {"open": OPEN, "closed": CLOSED, "any": ANY}
_STEP = 256  # subscriptions read at once
_NONE = dict.fromkeys(
    (
        "connections", "total_connections", "subscriptions", "slow_consumers", "in_msgs",
        "out_msgs", "in_bytes", "out_bytes", "accounts", "leafs", "uptime_s",
    ),
    0,
)  # fmt: skip


class NatsHandlers:
    """The handlers of /v1/nats."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context

    def handlers(self) -> Handlers:
        """By operation."""
        return {
            "nats": self.show,
            "natsConnections": self.connections,
            "natsSubscriptions": self.subscriptions,
            "natsAccounts": self.accounts,
            "natsLeafs": self.leafs,
        }

    @property
    def server(self) -> NatsServer | None:
        """The server; None if it is disabled."""
        return nats_of(self.context)

    async def show(self, _call: Call) -> Json:
        """The server as a whole."""
        server = self.server
        if server is None:
            return {"enabled": False, "server_name": "", "server_id": "", **_NONE}
        in_msgs, in_bytes, out_msgs, out_bytes = server.frontend.traffic()
        return {
            "enabled": True,
            "server_name": server.server_name,
            "server_id": server.server_id,
            "connections": len(server.sessions),
            "total_connections": server.frontend.total_connections,
            "subscriptions": subscription_count(server),
            "slow_consumers": server.frontend.slow_consumers,
            "in_msgs": in_msgs,
            "out_msgs": out_msgs,
            "in_bytes": in_bytes,
            "out_bytes": out_bytes,
            "accounts": len(server.accounts),
            "leafs": sum(1 for _ in links(server)),
            "uptime_s": round((time.time_ns() - server.start_ns) / SECOND, 1),
        }

    async def connections(self, call: Call) -> Json:
        """A page of connections."""
        server, query = self.server, call.query
        offset, limit = query["offset"], query["limit"]
        if server is None:
            return {"total": 0, "offset": offset, "limit": limit, "connections": []}
        options = ConnzOptions(
            sort=query["sort"],
            auth=True,
            offset=offset,
            limit=limit,
            state=_STATES[query["state"]],
            acc=query["account"] or "",
        )
        page = server.pages.connz(options).whole()
        rows = page["connections"] or []  # null: the account is unknown
        for row in rows:
            row.pop("jwt", None)
        return {"total": page["total"], "offset": offset, "limit": limit, "connections": rows}

    async def subscriptions(self, call: Call) -> Json:
        """A page of subscriptions."""
        query = call.query
        offset, limit, text = query["offset"], query["limit"], (query["filter"] or "").lower()
        found: list[Json] = []
        total = 0
        accounts = self._accounts(query["account"])
        if not text:
            total = sum(count_local(account.router) for account in accounts)
            async for row in _rows(accounts, offset):
                found.append(row)
                if len(found) == limit:
                    break
        else:
            async for row in _rows(accounts, 0):
                if text in row["subject"].lower():
                    total += 1
                    if offset < total <= offset + limit:
                        found.append(row)
        return {"total": total, "offset": offset, "limit": limit, "subscriptions": found}

    def _accounts(self, name: str | None) -> list[AccountView]:
        if self.server is None:
            return []
        every = self.server.accounts.values()
        return [account for account in every if name in (None, account.name)]

    async def accounts(self, _call: Call) -> Json:
        """All accounts with their traffic."""
        server, found = self.server, []
        for account in self._accounts(None):
            stat = account_stat(account)
            found.append(
                {
                    "name": account.name,
                    "system": server is not None and account is server.system_account,
                    "connections": stat["conns"],
                    "leafs": stat["leafnodes"],
                    "subscriptions": stat["num_subscriptions"],
                    "in_msgs": stat["received"]["msgs"],
                    "out_msgs": stat["sent"]["msgs"],
                    "in_bytes": stat["received"]["bytes"],
                    "out_bytes": stat["sent"]["bytes"],
                    "slow_consumers": stat["slow_consumers"],
                }
            )
        return {"accounts": found}

    async def leafs(self, _call: Call) -> Json:
        """All leaf node connections."""
        return {
            "leafs": [
                {
                    "cid": link.client_id,
                    "name": link.remote_name,
                    "account": link.account.name if link.account is not None else "",
                    "address": f"{link.host}:{link.port}",
                    "spoke": link.is_spoke,
                    "rtt_ms": round(link.rtt_ns / MS, 3),
                    "in_msgs": link.in_msgs,
                    "out_msgs": link.out_msgs,
                    "in_bytes": link.in_bytes,
                    "out_bytes": link.out_bytes,
                    "subscriptions": link.subscriptions,
                }
                for link in (() if self.server is None else links(self.server))
            ]
        }


def nats_of(context: ConsoleContext) -> NatsServer | None:
    """The NATS server; None if it is disabled."""
    service = context.host.service(NatsService)
    return None if service is None else service.server


def need_account(context: ConsoleContext, name: str | None) -> Any:
    """An account; by default the global one. RefusedError."""
    server = nats_of(context)
    if server is None:
        raise RefusedError(errors.NO_SERVICE, what="NATS")
    account = server.accounts.get(name or "$G")
    if account is None:
        raise RefusedError(errors.NO_ACCOUNT, account=name or "$G")
    return account


async def _rows(accounts: list[AccountView], skip: int) -> AsyncIterator[Json]:
    """The subscriptions of clients after the first `skip`, a few in each turn of the loop."""
    pauses = Pauses()
    for account in accounts:
        size = count_local(account.router)
        at = min(skip, size)
        skip -= at
        while at < size:
            listed = window(account.router, at, _STEP, local=True)
            if not listed:
                break
            for subject, queue, sid, sink, delivered, _limit, _far in listed:
                yield {
                    "account": account.name,
                    "subject": subject.decode("utf-8", "replace"),
                    "queue": queue.decode("utf-8", "replace"),
                    "cid": getattr(sink, "client_id", 0),
                    "sid": sid.decode("utf-8", "replace"),
                    "messages": delivered,
                }
            at += len(listed)
            await pauses.pause()
