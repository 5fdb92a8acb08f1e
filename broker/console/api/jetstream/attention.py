"""Problems of JetStream: streams that cannot be opened or read, consumers that do not deliver.

Each open page requests the overview every second, and there may be many consumers. They are checked
once in `ATTENTION_AGE`, at most some thousands, with pauses. A consumer is reported if many
messages wait for it and none was delivered since the last check. Whether a client requests messages
at the time of a check does not matter, because clients fetch only sometimes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from broker.console import limits
from broker.console.api.jetstream.streams import enabled_accounts
from broker.console.pauses import Pauses

if TYPE_CHECKING:
    from broker.console.context import ConsoleContext
    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.consumers.consumer import Consumer
    from broker.protocols.jetstream.publish.stream import Stream

    Json = dict[str, Any]
    _Key = tuple[str, str, str, int]  # account, stream, consumer, when it was created


class StreamAttention:
    """The problems that the last check found."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context
        self._found: list[Json] = []
        self._checked_ns = 0
        self._delivered: dict[_Key, int] = {}

    async def items(self) -> list[Json]:
        """The items for the overview."""
        now_ns = time.monotonic_ns()
        if now_ns - self._checked_ns >= limits.ATTENTION_AGE or not self._checked_ns:
            self._checked_ns = now_ns  # set first: concurrent requests get the old items
            self._found = await self._check()
        return self._found

    async def _check(self) -> list[Json]:
        before, self._delivered = self._delivered, {}
        found: list[Json] = []
        consumers_left, pauses = limits.ATTENTION_CONSUMERS_MAX, Pauses()
        for account in enabled_accounts(self.context):
            for name, reason in list(account.offline.items()):
                found.append(_item("error", f"stream {name} is offline: {reason}"))
            for stream in list(account.streams.values()):
                if lost := stream.store.lost_messages:
                    text = f"stream {stream.name}: {lost:,} messages cannot be read"
                    found.append(_item("error", text, account, stream))
                if pauses.is_due():
                    await pauses.pause()
                if stream.store.messages < limits.ATTENTION_DEPTH:
                    continue
                for consumer in list(stream.consumers.values())[:consumers_left]:
                    consumers_left -= 1
                    if item := self._consumer_item(account, stream, consumer, before):
                        found.append(item)
                    if pauses.is_due():
                        await pauses.pause()
        return found[: limits.ATTENTION_MAX]

    def _consumer_item(
        self, account: JetStreamAccount, stream: Stream, consumer: Consumer, before: dict[_Key, int]
    ) -> Json | None:
        info = consumer.info()
        if info.paused or info.num_pending < limits.ATTENTION_DEPTH:
            return None
        key = (account.name, stream.name, consumer.name, consumer.created_ns)
        self._delivered[key] = delivered = info.delivered.consumer_seq
        if before.get(key) != delivered:
            return None
        text = f"consumer {consumer.name} of {stream.name}: {info.num_pending:,} messages wait"
        return _item("warning", f"{text} and none is delivered", account, stream)


def _item(
    severity: str, text: str, account: JetStreamAccount | None = None, stream: Stream | None = None
) -> Json:
    return {
        "severity": severity,
        "text": text,
        "topic": None,
        "channel": None,
        "account": None if account is None else account.name,
        "stream": None if stream is None else stream.name,
    }
