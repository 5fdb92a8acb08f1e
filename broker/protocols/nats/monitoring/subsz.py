"""/subsz: number of subscriptions, statistics of the routers, and the list of subscriptions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from broker.protocols.nats.monitoring import errors, limits
from broker.protocols.nats.monitoring.connz import detail
from broker.protocols.nats.monitoring.lists import LongPage, is_literal
from broker.protocols.nats.monitoring.options import PageError, SubszOptions, number, rfc3339
from broker.routing.router import (
    count_local,
    count_matching,
    fanout,
    matching,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.protocols.nats.views import AccountView, ServerView
    from broker.routing.router import Router


def counts(routers: Iterable[Router]) -> dict[str, Any]:
    """The sums of the routers' statistics."""
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


def subsz(
    server: ServerView, options: SubszOptions, subs_most: int = limits.MONITOR_SUBSCRIPTIONS_MAX
) -> LongPage:
    """The page, with up to `subs_most` subscriptions; PageError if `test` is not a subject for
    publishing."""
    if options.test and not is_literal(options.test):
        raise PageError(errors.TEST_SUBJECT.format(options.test))
    limit = options.limit if options.limit > 0 else limits.MONITOR_SUBSCRIPTIONS
    offset = max(0, options.offset)
    accounts = [
        account for account in server.accounts.values() if options.account in ("", account.name)
    ]
    test = options.test.encode("utf-8", "replace")
    most = min(limit, subs_most)
    found = 0
    if options.subscriptions:
        found = sum(_size(account.router, test) for account in accounts)
    shown = max(0, min(found - offset, most))
    head: dict[str, Any] = {"server_id": server.server_id, "now": rfc3339(time.time_ns())}
    head |= counts(account.router for account in accounts)
    head |= {"total": found, "offset": offset, "limit": limit}
    return LongPage(
        head, "subscriptions_list" if shown else "", _entries(accounts, test, offset, shown)
    )


def _size(router: Router, test: bytes) -> int:
    """The number of this server's clients' subscriptions; /leafz shows those of other servers."""
    return count_matching(router, test) if test else count_local(router)


def _entries(
    accounts: list[AccountView], test: bytes, skip: int, most: int
) -> Iterator[dict[str, Any]]:
    """The `most` entries after the first `skip`, read from the routers a few at a time."""
    for account in accounts:
        size = _size(account.router, test)
        while skip < size and most > 0:
            step = min(most, limits.MONITOR_LISTED)
            if test:
                listed = matching(account.router, test, local=True, skip=skip, most=step)
            else:
                listed = window(account.router, skip, step, local=True)
            if not listed:
                break  # some were removed meanwhile
            for subject, queue, sid, sink, delivered, limit, _far in listed:
                # subscriptions of the server itself have no connection
                cid = getattr(sink, "client_id", 0)
                sub = (subject, queue, sid, delivered, limit)
                yield detail(sub, cid, account.name)
            skip += len(listed)
            most -= len(listed)
        skip = max(0, skip - size)
