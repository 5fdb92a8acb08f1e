"""Access of the handlers to JetStream: its streams, and requests to its API."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from broker.base.units import SECOND
from broker.console import errors, limits
from broker.console.errors import ConsoleError, RefusedError
from broker.protocols.jetstream.service import JetStreamService
from broker.protocols.nats.accounts.asking import Question, ask

if TYPE_CHECKING:
    from broker.console.context import Call, ConsoleContext
    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.jetstream import JetStream
    from broker.protocols.jetstream.publish.stream import Stream

    Json = dict[str, Any]

_GENERAL = 500


def jetstream_of(context: ConsoleContext) -> JetStream | None:
    """The service; None if it is disabled."""
    service = context.host.service(JetStreamService)
    return None if service is None else service.jetstream


def need_account(context: ConsoleContext, name: str) -> JetStreamAccount:
    """An account with JetStream. RefusedError."""
    jetstream = jetstream_of(context)
    if jetstream is None:
        raise RefusedError(errors.NO_SERVICE, what="JetStream")
    account = jetstream.accounts.get(name)
    if account is None or not account.enabled:
        raise RefusedError(errors.NO_ACCOUNT, account=name)
    return account


def need_stream(context: ConsoleContext, call: Call) -> tuple[JetStreamAccount, Stream]:
    """The stream in the path, with its account. RefusedError."""
    account, name = need_account(context, call.names["account"]), call.names["stream"]
    stream = account.streams.get(name)
    if stream is None:
        reason = account.offline.get(name)
        if reason is not None:
            raise RefusedError(errors.QUARANTINED, topic=name, reason=reason)
        raise RefusedError(errors.NO_STREAM, stream=name)
    return account, stream


async def request(account: JetStreamAccount, verb: str, body: Json | None = None) -> Json:
    """The answer of the JetStream API. RefusedError: the answer is an error."""
    data = b"" if body is None else orjson.dumps(body)
    return await send(account, Question(f"$JS.API.{verb}".encode(), data))


async def send(account: JetStreamAccount, question: Question) -> Json:
    """The answer to a request or a published message. RefusedError: the answer is an error."""
    found = await ask(account.account, question, limits.JETSTREAM_WAIT / SECOND)
    if found is None:
        raise RefusedError(errors.NO_ANSWER)
    answer: Json = orjson.loads(found)
    error = answer.get("error")
    if error is not None:
        # JetStream also answers some mistakes of clients with 500.
        status = HTTPStatus.CONFLICT if error["code"] == _GENERAL else error["code"]
        row = ConsoleError(status, f"JS{error['err_code']}", "{text}")
        raise RefusedError(row, text=error.get("description", ""))
    return answer
