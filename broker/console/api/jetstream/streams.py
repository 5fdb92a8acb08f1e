"""Streams and their consumers: the service as a whole, lists, one stream with its settings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.console.api.jetstream.service import jetstream_of, need_stream
from broker.console.listing import Rates, ordered
from broker.console.pauses import Pauses
from broker.protocols.jetstream.api.streams import shown_config, state_of
from broker.protocols.jetstream.structs import ZERO_TIME
from broker.protocols.nsq.http.v1 import moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.consumers.consumer import Consumer
    from broker.protocols.jetstream.publish.stream import Stream

    Json = dict[str, Any]

# The prefixes that client libraries use for the streams of buckets.
KV_PREFIX: Final = "KV_"
OBJECT_PREFIX: Final = "OBJ_"
_TOTALS: Final = ("streams", "consumers", "messages", "bytes", "memory", "storage")
_NONE: Final = dict.fromkeys(
    (*_TOTALS, "max_memory", "max_storage", "accounts", "api_total", "api_errors"), 0
)


def kind_of(stream: Stream) -> str:
    """What clients use the stream for: "kv", "object" or "stream"."""
    subjects = stream.config.subjects
    if stream.name.startswith(KV_PREFIX):
        bucket = stream.name.removeprefix(KV_PREFIX)
        if stream.config.mirror is not None or f"$KV.{bucket}.>" in subjects:
            return "kv"
    if stream.name.startswith(OBJECT_PREFIX):
        bucket = stream.name.removeprefix(OBJECT_PREFIX)
        if f"$O.{bucket}.M.>" in subjects:
            return "object"
    return "stream"


def enabled_accounts(context: ConsoleContext, name: str | None = None) -> list[JetStreamAccount]:
    """The accounts with JetStream; `name`: only that account."""
    jetstream = jetstream_of(context)
    if jetstream is None:
        return []
    return [
        account
        for account in jetstream.accounts.values()
        if account.enabled and name in (None, account.name)
    ]


async def totals(accounts: list[JetStreamAccount]) -> dict[str, int]:
    """The totals of all streams of some accounts."""
    found, pauses = dict.fromkeys(_TOTALS, 0), Pauses()
    for account in accounts:
        for stream in list(account.streams.values()):
            size = stream.store.bytes
            found["streams"] += 1
            found["consumers"] += stream.consumer_count
            found["messages"] += stream.store.messages
            found["bytes"] += size
            found["memory" if stream.config.storage == "memory" else "storage"] += size
            if pauses.is_due():
                await pauses.pause()
    return found


class StreamHandlers:
    """The handlers of /v1/jetstream that show streams and consumers."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context
        self.rates = Rates(time.monotonic_ns)

    def handlers(self) -> Handlers:
        """By operation."""
        return {
            "jetstream": self.show,
            "streams": self.streams,
            "stream": self.stream,
            "streamConsumers": self.consumers,
        }

    async def show(self, _call: Call) -> Json:
        """The service as a whole."""
        jetstream = jetstream_of(self.context)
        if jetstream is None:
            return {"enabled": False, "domain": "", "store_dir": "", "offline": [], **_NONE}
        accounts, context = enabled_accounts(self.context), jetstream.context
        return {
            "enabled": True,
            "domain": context.domain,
            "store_dir": "" if context.folder is None else str(context.folder),
            **await totals(accounts),
            "max_memory": context.max_memory,
            "max_storage": context.max_storage,
            "accounts": len(accounts),
            "api_total": context.api_total,
            "api_errors": context.api_errors,
            "offline": [
                {"account": account.name, "name": name, "reason": reason}
                for account in accounts
                for name, reason in account.offline.items()
            ],
        }

    async def streams(self, call: Call) -> Json:
        """A page of the streams of all accounts."""
        query, pauses = call.query, Pauses()
        text, kind = (query["filter"] or "").lower(), query["kind"]
        found: list[tuple[JetStreamAccount, Stream]] = []
        total = 0
        for account in enabled_accounts(self.context, query["account"]):
            for stream in account.sorted_streams():
                total += 1
                if text in stream.name.lower() and kind in (None, kind_of(stream)):
                    found.append((account, stream))
                if pauses.is_due():
                    await pauses.pause()
        column, descending = query["sort"].removeprefix("-"), query["sort"].startswith("-")
        end = query["offset"] + query["limit"]
        if column == "name":
            rows = range(len(found))[::-1] if descending else range(len(found))
            shown = list(rows[query["offset"] : end])
        else:
            value = _COLUMNS[column]
            shown = await ordered(
                range(len(found)),
                lambda number: value(found[number][1]),
                query["offset"],
                end,
                descending=descending,
            )
        return {
            "total": total,
            "matched": len(found),
            "offset": query["offset"],
            "limit": query["limit"],
            "sort": query["sort"],
            "streams": [self._row(*found[number]) for number in shown],
        }

    def _row(self, account: JetStreamAccount, stream: Stream) -> Json:
        store, config = stream.store, stream.config
        key = (account.name, stream.name, stream.created_ns)
        (received,) = self.rates.of(key, (stream.stored,))
        return {
            "account": account.name,
            "name": stream.name,
            "kind": kind_of(stream),
            "subjects": config.subjects,
            "description": config.description,
            "storage": config.storage,
            "retention": config.retention,
            "messages": store.messages,
            "bytes": store.bytes,
            "num_subjects": store.subjects.size,
            "consumers": stream.consumer_count,
            "in_rate": received,
            "last": moment(store.last_ns) if store.last_seq and store.last_ns > 0 else None,
            "sealed": config.sealed,
            "lost": store.lost_messages,
        }

    async def stream(self, call: Call) -> Json:
        """One stream with its settings."""
        account, stream = need_stream(self.context, call)
        mirror, sources = account.origins.mirror(stream), account.origins.sources(stream)
        state = msgspec.to_builtins(state_of(stream))
        return {
            **self._row(account, stream),
            "created": moment(stream.created_ns),
            "first_seq": state["first_seq"],
            "last_seq": state["last_seq"],
            "first": None if state["first_ts"] == ZERO_TIME else state["first_ts"],
            "deleted": stream.store.num_deleted,
            "lost_bytes": stream.store.lost_bytes,
            "config": msgspec.to_builtins(shown_config(stream.config)),
            "mirror": None if mirror is None else msgspec.to_builtins(mirror),
            "sources": msgspec.to_builtins(sources or []),
        }

    async def consumers(self, call: Call) -> Json:
        """A page of the consumers of a stream."""
        account, stream = need_stream(self.context, call)
        query, text = call.query, (call.query["filter"] or "").lower()
        names = [name for name in sorted(stream.consumers) if text in name.lower()]
        page = names[query["offset"] : query["offset"] + query["limit"]]
        return {
            "account": account.name,
            "stream": stream.name,
            "total": len(stream.consumers),
            "matched": len(names),
            "offset": query["offset"],
            "limit": query["limit"],
            "consumers": [self._consumer(account, stream.consumers[name]) for name in page],
        }

    def _consumer(self, account: JetStreamAccount, consumer: Consumer) -> Json:
        info = consumer.info()
        config = consumer.config
        key = (account.name, consumer.stream_name, consumer.name, consumer.created_ns)
        (delivered,) = self.rates.of(key, (info.delivered.consumer_seq,))
        return {
            "name": consumer.name,
            "durable": bool(config.durable_name),
            "push": bool(config.deliver_subject),
            "ack_policy": config.ack_policy,
            "filters": config.filter_subjects or list(filter(None, [config.filter_subject])),
            "pending": info.num_pending,
            "ack_pending": info.num_ack_pending,
            "redelivered": info.num_redelivered,
            "waiting": info.num_waiting,
            "bound": consumer.push_bound,
            "delivered_seq": info.delivered.stream_seq,
            "ack_floor": info.ack_floor.stream_seq,
            "out_rate": delivered,
            "paused": info.paused,
            "created": moment(consumer.created_ns),
            "config": msgspec.to_builtins(config),
        }


_COLUMNS: Final[dict[str, Callable[[Stream], int]]] = {
    "messages": lambda stream: stream.store.messages,
    "bytes": lambda stream: stream.store.bytes,
    "num_subjects": lambda stream: stream.store.subjects.size,
    "consumers": lambda stream: stream.consumer_count,
    "last": lambda stream: stream.store.last_ns,
}
