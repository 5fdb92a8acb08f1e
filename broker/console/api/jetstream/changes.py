"""Changes of streams, consumers and keys: requests to the JetStream API, and messages to streams.

They are answered after they are stored, as for other clients, and with the errors of the JetStream
API, such as `JS10059`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.console import errors
from broker.console.api.jetstream.service import need_account, need_stream, request, send
from broker.console.api.jetstream.streams import KV_PREFIX, kind_of
from broker.console.api.publish import bytes_of, subject_of
from broker.console.errors import RefusedError
from broker.protocols.jetstream.structs import ZERO_TIME, time_text
from broker.protocols.nats.accounts.asking import Question
from broker.protocols.nsq.http.app import ApiError
from broker.protocols.nsq.http.v1 import moment_ns

if TYPE_CHECKING:
    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.protocols.jetstream.account import JetStreamAccount

    Json = dict[str, Any]

DONE = {"done": True}
_REMOVED = {  # the header by which clients recognize a deleted key
    False: b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n",
    True: b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n",
}


class StreamChangeHandlers:
    """The handlers of requests that change streams, consumers and keys."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context

    def handlers(self) -> Handlers:
        """By operation."""
        return {
            "createStream": self.create,
            "updateStream": self.update,
            "deleteStream": self.delete,
            "purgeStream": self.purge,
            "deleteStreamMessage": self.delete_message,
            "deleteStreamConsumer": self.delete_consumer,
            "pauseStreamConsumer": self.pause_consumer,
            "unpauseStreamConsumer": self.unpause_consumer,
            "putKey": self.put_key,
            "deleteKey": self.delete_key,
        }

    # --- streams

    async def create(self, call: Call) -> Json:
        """Create a stream; the configuration is that of the JetStream API."""
        account = need_account(self.context, call.names["account"])
        name = str(call.body.get("name", ""))
        await request(account, f"STREAM.CREATE.{_token(name)}", call.body)
        return DONE

    async def update(self, call: Call) -> Json:
        """Change the configuration of a stream; missing fields are not changed."""
        account, stream = need_stream(self.context, call)
        info = await request(account, f"STREAM.INFO.{_token(stream.name)}")
        config = {**info["config"], **call.body}
        await request(account, f"STREAM.UPDATE.{_token(stream.name)}", config)
        return DONE

    async def delete(self, call: Call) -> Json:
        """Delete a stream with its messages and consumers."""
        account, name = need_account(self.context, call.names["account"]), call.names["stream"]
        if name not in account.offline:
            need_stream(self.context, call)
        call.confirmed(name)
        await request(account, f"STREAM.DELETE.{_token(name)}")
        return DONE

    async def purge(self, call: Call) -> Json:
        """Delete messages of a stream: all, those of a subject, those before a seq, or all but
        the newest ones."""
        account, stream = need_stream(self.context, call)
        call.confirmed(stream.name)
        names = {"subject": "filter", "before": "seq", "keep": "keep"}
        options = {names[key]: value for key, value in call.body.items() if value is not None}
        answer = await request(account, f"STREAM.PURGE.{_token(stream.name)}", options)
        return {"purged": answer["purged"]}

    async def delete_message(self, call: Call) -> Json:
        """Delete one message."""
        account, stream = need_stream(self.context, call)
        seq = call.names["seq"]
        call.confirmed(seq)
        if not seq.isascii() or not seq.isdigit():
            raise RefusedError(errors.ARGUMENT, name="seq", reason=errors.NUMBER)
        await request(account, f"STREAM.MSG.DELETE.{_token(stream.name)}", {"seq": int(seq)})
        return DONE

    # --- consumers

    def _consumer(self, call: Call) -> tuple[JetStreamAccount, str]:
        """The account, and the last tokens of the subject of a request."""
        account, stream = need_stream(self.context, call)
        return account, f"{_token(stream.name)}.{_token(call.names['consumer'])}"

    async def delete_consumer(self, call: Call) -> Json:
        """Delete a consumer with its positions."""
        account, names = self._consumer(call)
        call.confirmed(call.names["consumer"])
        await request(account, f"CONSUMER.DELETE.{names}")
        return DONE

    async def pause_consumer(self, call: Call) -> Json:
        """Pause a consumer until a time."""
        try:
            until = time_text(moment_ns(call.body["until"]))
        except ApiError:
            raise RefusedError(errors.ARGUMENT, name="until", reason=errors.MOMENT) from None
        return await self._pause(call, until)

    async def unpause_consumer(self, call: Call) -> Json:
        """Resume a paused consumer."""
        return await self._pause(call, ZERO_TIME)

    async def _pause(self, call: Call, until: str) -> Json:
        account, names = self._consumer(call)
        await request(account, f"CONSUMER.PAUSE.{names}", {"pause_until": until})
        return DONE

    # --- keys

    def _key(self, call: Call) -> tuple[JetStreamAccount, bytes]:
        """The account and the subject of a key. RefusedError."""
        account, stream = need_stream(self.context, call)
        if kind_of(stream) != "kv" or stream.config.mirror is not None:
            raise RefusedError(errors.NOT_BUCKET, stream=stream.name)
        bucket = stream.name.removeprefix(KV_PREFIX)
        return account, subject_of(f"$KV.{bucket}.{call.names['key']}")

    async def put_key(self, call: Call) -> Json:
        """Store a value. Returns its revision."""
        account, subject = self._key(call)
        answer = await send(account, Question(subject, bytes_of(call.body)))
        return {"revision": answer["seq"]}

    async def delete_key(self, call: Call) -> Json:
        """Mark a key as deleted; with `purge` its history is removed."""
        account, subject = self._key(call)
        call.confirmed(call.names["key"])
        answer = await send(account, Question(subject, b"", _REMOVED[call.query["purge"]]))
        return {"revision": answer["seq"]}


def _token(name: str) -> str:
    """A name as the end of a subject. RefusedError."""
    found = subject_of(name).decode()
    if "." in found:
        raise RefusedError(errors.ARGUMENT, name="name", reason=errors.SUBJECT)
    return found
