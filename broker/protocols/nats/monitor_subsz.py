"""/subsz: how many subscriptions there are, how well the routers do, and who they belong to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker import errors_monitor, limits
from broker.core.survey import fanout, takers, window
from broker.protocols.nats.monitor_connz import detail
from broker.protocols.nats.monitor_options import PageError, SubszOptions
from broker.protocols.nats.monitor_subjects import is_literal
from broker.protocols.nats.monitor_text import number, rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.core.router import Router
    from broker.protocols.nats.monitor_view import AccountView, ServerView


@dataclass(slots=True)
class Subsz:
    """The page; over HTTP only the counts are shown when no subscription is."""

    page: dict[str, Any]
    counts: dict[str, Any]


def counts(routers: Iterable[Router]) -> dict[str, Any]:
    """What several routers count, together."""
    size = inserts = removes = matches = hits = cached = total = widest = 0
    for router in routers:
        size += router.size
        inserts += router.inserts
        removes += router.removes
        matches += router.matches
        hits += router.cache_hits
        answers, subscriptions, most = fanout(router)
        cached += answers
        total += subscriptions
        widest = max(widest, most)
    return {
        "num_subscriptions": size,
        "num_cache": cached,
        "num_inserts": inserts,
        "num_removes": removes,
        "num_matches": matches,
        "cache_hit_rate": number(hits / matches) if matches else 0,
        "max_fanout": widest,
        "avg_fanout": number(total / cached) if cached else 0,
    }


def subsz(server: ServerView, options: SubszOptions) -> Subsz:
    """PageError when `test` is no subject to publish to."""
    if options.test and not is_literal(options.test):
        raise PageError(errors_monitor.TEST_SUBJECT.format(options.test))
    limit = options.limit if options.limit > 0 else limits.MONITOR_SUBSCRIPTIONS
    offset = max(0, options.offset)
    accounts = [
        account for account in server.accounts.values() if options.account in ("", account.name)
    ]
    listed: list[dict[str, Any]] = []
    if options.subscriptions:
        most = min(limit, limits.MONITOR_SUBSCRIPTIONS_MAX)
        listed = _listed(accounts, options.test.encode("utf-8", "replace"), offset, most)
    counted = counts(account.router for account in accounts)
    page = {"server_id": server.server_id, "now": rfc3339(time.time_ns())} | counted
    page |= {"total": len(listed), "offset": offset, "limit": limit}
    if listed:
        page["subscriptions_list"] = listed
    return Subsz(page, counted)


def _listed(
    accounts: Iterable[AccountView], test: bytes, skip: int, most: int
) -> list[dict[str, Any]]:
    """Those of our own clients; what stands for other servers is shown by /leafz."""
    listed: list[dict[str, Any]] = []
    for account in accounts:
        left = most - len(listed)
        if left <= 0:
            break
        if test:
            taking = takers(account.router, test, local=True)
            seen, size = taking[skip : skip + left], len(taking)
        else:
            seen, size = window(account.router, skip, left, local=True), account.router.size
        skip = 0 if seen else max(0, skip - size)
        for subject, queue, sid, sink, delivered, limit, _far in seen:
            # what the server itself listens to has no connection
            cid = getattr(sink, "client_id", 0)
            sub = (subject, queue, sid, delivered, limit)
            listed.append(detail(sub, cid, account.name))
    return listed
