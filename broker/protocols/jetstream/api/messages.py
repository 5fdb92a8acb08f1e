"""The verbs STREAM.MSG.GET, STREAM.MSG.DELETE and STREAM.PURGE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.protocols.jetstream import errors
from broker.protocols.jetstream.consumers.positions import clamp_seq
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import (
    MsgDeleteRequest,
    MsgGetAnswer,
    MsgGetRequest,
    PurgeAnswer,
    PurgeRequest,
    StoredMsg,
    Success,
)
from broker.protocols.nats.accounts.subjects import raw

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from broker.protocols.jetstream.api.dispatch import Call, Parts
    from broker.protocols.jetstream.publish.stream import Stream


def get(call: Call) -> Parts | Awaitable[Parts]:
    """STREAM.MSG.GET: one message, by its seq, subject or time."""
    request = call.required(MsgGetRequest)
    if not _is_single_get(request):
        raise ApiError(errors.BAD_REQUEST)
    stream = call.account.stream(call.stream_name)
    subject = request.last_by_subj or request.next_by_subj
    if subject and not stream.store.subjects.is_quick([raw(subject)]):
        return _get_filtered(stream, request, subject)
    return _found(stream, request)


async def _get_filtered(stream: Stream, request: MsgGetRequest, subject: str) -> Parts:
    """The answer to a request with a new wildcard, which is compared with many subjects."""
    _held = await stream.store.subjects.filter_in_turns([raw(subject)])
    answer = _found(stream, request)
    return answer if isinstance(answer, tuple) else await answer


def _found(stream: Stream, request: MsgGetRequest) -> Parts | Awaitable[Parts]:
    found = stream.lookup.get(request)
    if found is None and stream.store.is_settling:
        return _get_settled(stream, request)
    return _message(found, stream, request)


async def _get_settled(stream: Stream, request: MsgGetRequest) -> Parts:
    """The answer after appended messages are in the file: the request may be for one of them,
    because STREAM.INFO counts them at once."""
    await stream.store.settle()
    return _message(stream.lookup.get(request), stream, request)


def _message(found: StoredMsg | None, stream: Stream, request: MsgGetRequest) -> Parts:
    if found is None:
        if stream.lookup.is_stored(request):  # not 10037: the message exists
            raise ApiError(errors.STREAM_GENERAL, err="message cannot be read")
        raise ApiError(errors.MESSAGE_NOT_FOUND)
    return (MsgGetAnswer(message=found),)


def _is_single_get(request: MsgGetRequest) -> bool:
    if request.batch > 0 or request.max_bytes > 0:
        return False
    # As in nats-server, the other keys of direct get are ignored.
    if request.last_by_subj:
        return not (request.seq or request.next_by_subj or request.start_time)
    if request.seq and request.start_time:
        return False
    return bool(request.seq or request.next_by_subj or request.start_time)


async def delete(call: Call) -> Parts:
    """STREAM.MSG.DELETE: one message, whose bytes are overwritten unless `no_erase`."""
    request = call.required(MsgDeleteRequest)
    stream = call.account.stream(call.stream_name)
    if stream.config.sealed:
        raise ApiError(errors.STREAM_SEALED)
    if stream.config.deny_delete:
        raise ApiError(errors.MESSAGE_DELETE, err="message delete not permitted")
    if not await stream.store.delete(request.seq, erase=not request.no_erase):
        raise _not_stored(stream, request.seq)
    return (Success(success=True),)


def _not_stored(stream: Stream, seq: int) -> ApiError:
    """The error for the deletion of a message that does not exist. As in nats-server, it is not
    counted, and its text differs for streams in memory and for deleted messages."""
    is_deleted = stream.store.first_seq <= seq <= stream.store.last_seq
    if is_deleted or stream.config.storage == "memory":
        problem = ApiError(errors.SEQUENCE_NOT_FOUND, seq=seq)
    else:
        beyond = seq > stream.store.last_seq
        text = "stream store EOF" if beyond else "no message found"
        problem = ApiError(errors.MESSAGE_DELETE, err=text)
    problem.counted = False
    return problem


async def purge(call: Call) -> Parts:
    """STREAM.PURGE: all messages, those before a seq, all but the newest, those of a filter."""
    request = call.optional(PurgeRequest)
    if request.seq and request.keep:
        raise ApiError(errors.BAD_REQUEST)
    stream = call.account.stream(call.stream_name)
    if stream.config.sealed:
        raise ApiError(errors.STREAM_SEALED)
    if stream.config.deny_purge:
        raise ApiError(errors.STREAM_PURGE, err="stream purge not permitted")
    seq = clamp_seq(stream.store, request.seq)
    count = await stream.store.purge(request.filter or None, seq, request.keep)
    return (PurgeAnswer(success=True, purged=count),)
