"""The parts of /varz, /jsz and /healthz about JetStream, in the shape of nats-server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.protocols.jetstream import limits
from broker.protocols.jetstream.api.streams import state_of
from broker.protocols.jetstream.structs import time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.context import JetStreamContext
    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.nats.monitoring.options import HealthzOptions, JszOptions

_PAGE: Final = 1_024  # accounts of /jsz without limit=
_UINT64: Final = 2**64
NO_ACCOUNT: Final = 'JetStream account "{}" not found'
NO_STREAM: Final = 'JetStream stream "{}" not found on account "{}"'
NO_CONSUMER: Final = 'JetStream consumer "{}" not found for stream "{}" on account "{}"'
NOT_RECOVERED: Final = "JetStream stream '{} > {}' could not be recovered"
_NOT_FOUND, _UNAVAILABLE = 404, 503


class JetStreamPages:
    """Builds the JetStream parts of pages."""

    def __init__(
        self, context: JetStreamContext, accounts: Callable[[], Mapping[str, JetStreamAccount]]
    ) -> None:
        self.context = context
        self._all = accounts

    @property
    def accounts(self) -> Mapping[str, JetStreamAccount]:
        """All accounts by name."""
        return self._all()

    @property
    def _enabled(self) -> list[JetStreamAccount]:
        return [each for each in self.accounts.values() if each.enabled]

    def varz(self) -> dict[str, Any]:
        """The block `jetstream` of /varz."""
        return {"config": self._config(), "stats": self._stats(), **self._limits()}

    def _config(self) -> dict[str, Any]:
        context, config = self.context, self.context.config
        always = config.sync.mode == "always"
        page: dict[str, Any] = {
            "max_memory": context.max_memory,
            "max_storage": context.max_storage,
            "store_dir": "" if context.folder is None else str(context.folder),
            "sync_interval": limits.JS_SYNC_INTERVAL if always else config.sync.period_ns,
        }
        if always:
            page["sync_always"] = True
        if config.domain:
            page["domain"] = config.domain
        return page | {"strict": config.strict}

    def _limits(self) -> dict[str, Any]:
        config = self.context.config
        found = {
            "max_ack_pending": config.max_ack_pending,
            "max_request_batch": config.max_request_batch,
            "default_max_consumers": config.max_consumers,
            "duplicate_window": config.duplicate_window_ns,
            "request_queue_limit": config.request_queue,
        }
        return {"limits": {name: value for name, value in found.items() if value}}

    def _stats(self) -> dict[str, Any]:
        accounts, context = self._enabled, self.context
        return {
            "memory": sum(each.used("memory") for each in accounts),
            "storage": sum(each.used("file") for each in accounts),
            "reserved_memory": context.reserved("memory"),
            "reserved_storage": context.reserved("file"),
            "accounts": len(accounts),
            "ha_assets": 0,
            "api": {
                "level": context.level,
                "total": context.api_total,
                "errors": context.api_errors,
            },
        }

    # --- /jsz

    def jsz(self, options: JszOptions) -> dict[str, Any]:
        """The page /jsz."""
        streams = [s for each in self._enabled for s in each.streams.values()]
        consumers = sum(s.consumer_count for s in streams)
        page = self._stats() | {
            "server_id": self.context.nats.server_id,
            "now": time_text(time.time_ns()),
            "config": self._config(),
            **self._limits(),
            "streams": len(streams),
        }
        if options.raft and streams:
            page["streams_leader"] = len(streams)
        page["consumers"] = consumers
        if options.raft and consumers:
            page["consumers_leader"] = consumers
        page["messages"] = sum(s.store.messages for s in streams)
        page["bytes"] = sum(s.store.bytes for s in streams)
        if shown := list(self._accounts(options)):
            page["account_details"] = [self._account(each, options) for each in shown]
        return page | {"total": len(self._enabled)}

    def _accounts(self, options: JszOptions) -> Iterator[JetStreamAccount]:
        if options.account:
            yield from (each for each in self._enabled if each.name == options.account)
        elif options.accounts or options.streams or options.consumer:
            found = sorted(self._enabled, key=lambda each: each.name)
            start = max(0, options.offset)
            yield from found[start : start + (options.limit or _PAGE)]

    def _account(self, account: JetStreamAccount, options: JszOptions) -> dict[str, Any]:
        page: dict[str, Any] = {
            "name": account.name,
            "id": account.name,
            "memory": account.used("memory"),
            "storage": account.used("file"),
            "reserved_memory": account.limits.max_memory % _UINT64,
            "reserved_storage": account.limits.max_storage % _UINT64,
            "accounts": 0,
            "ha_assets": 0,
            "api": {"level": 0, "total": account.api_total, "errors": account.api_errors},
        }
        if options.streams or options.consumer:
            page["stream_detail"] = [
                self._stream(s, options) | self._origins(account, s)
                for s in account.sorted_streams()
            ]
        return page

    def _stream(self, stream: Stream, options: JszOptions) -> dict[str, Any]:
        leader = {"leader": self.context.server_name}
        page: dict[str, Any] = {
            "name": stream.name,
            "created": time_text(stream.created_ns),
            "cluster": leader,
        }
        if options.config:
            page["config"] = msgspec.to_builtins(stream.config)
        page["state"] = msgspec.to_builtins(state_of(stream))
        if options.consumer and stream.consumers:
            page["consumer_detail"] = list(self._consumers(stream, options))
        return page

    def _origins(self, account: JetStreamAccount, stream: Stream) -> dict[str, Any]:
        """The progress of a mirror, or of a stream with sources."""
        mirror, sources = account.origins.mirror(stream), account.origins.sources(stream)
        page = {} if mirror is None else {"mirror": msgspec.to_builtins(mirror)}
        return page | ({"sources": msgspec.to_builtins(sources)} if sources else {})

    def _consumers(self, stream: Stream, options: JszOptions) -> Iterator[dict[str, Any]]:
        for name in sorted(stream.consumers):
            info = stream.consumers[name].info()
            if not options.config:
                info.config = None
            yield msgspec.to_builtins(info)

    # --- /healthz

    def problem(self, options: HealthzOptions) -> tuple[int, dict[str, str]] | None:
        """Why a check fails: (HTTP status, fields of the error); None: it succeeds."""
        if options.js_enabled_only or options.js_server_only:
            return None
        if options.account:
            return self._missing(options.account, options.stream, options.consumer)
        for account in self._enabled:
            for name in account.offline:
                text = NOT_RECOVERED.format(account.name, name)
                row = {"type": "STREAM", "account": account.name, "stream": name, "error": text}
                return _UNAVAILABLE, row
        return None

    def _missing(self, name: str, stream: str, consumer: str) -> tuple[int, dict[str, str]] | None:
        account = self.accounts.get(name)
        row = {"type": "ACCOUNT", "account": name}
        if account is None or not account.enabled:
            return _NOT_FOUND, row | {"error": NO_ACCOUNT.format(name)}
        if not stream:
            return None
        row |= {"type": "STREAM", "stream": stream}
        if stream in account.offline:
            return _UNAVAILABLE, row | {"error": NOT_RECOVERED.format(name, stream)}
        found = account.streams.get(stream)
        if found is None:
            return _NOT_FOUND, row | {"error": NO_STREAM.format(stream, name)}
        if not consumer or consumer in found.consumers:
            return None
        row |= {"type": "CONSUMER", "consumer": consumer}
        return _NOT_FOUND, row | {"error": NO_CONSUMER.format(consumer, stream, name)}
