"""The verbs CONSUMER.* of the API. The consumers themselves receive requests for messages."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.base.units import INT64_MAX
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.api import metadata
from broker.protocols.jetstream.api.decode import decode
from broker.protocols.jetstream.api.dispatch import Verb
from broker.protocols.jetstream.api.streams import paged
from broker.protocols.jetstream.consumers import checks
from broker.protocols.jetstream.consumers.positions import clamp_seq, start_search
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerListAnswer,
    ConsumerNamesAnswer,
    CreateConsumerRequest,
    PageRequest,
    PauseAnswer,
    PauseRequest,
    ResetAnswer,
    ResetRequest,
    Success,
    UnpinRequest,
    time_ns,
    time_text,
)

if TYPE_CHECKING:
    from broker.protocols.jetstream.api.dispatch import Call, Parts
    from broker.protocols.jetstream.consumers.consumer import Consumer
    from broker.protocols.jetstream.consumers.registry import Consumers
    from broker.protocols.jetstream.publish.stream import Stream


def _found(call: Call) -> tuple[Consumers, Stream, Consumer]:
    """The registry, the stream and the consumer in the subject. ApiError 10059, 10014, 10195."""
    consumers = call.account.consumers
    stream = call.account.stream(call.stream_name)
    return consumers, stream, consumers.find(stream, call.tokens[1])


def _shown(consumer: Consumer) -> ConsumerInfo:
    """The consumer in an answer, with the version and API level of this server."""
    info: ConsumerInfo = consumer.info()
    assert info.config is not None
    info.config = msgspec.structs.replace(
        info.config, metadata=metadata.shown(info.config.metadata)
    )
    return info


# --- create --------------------------------------------------------------------------------------


async def create(call: Call) -> Parts:
    """CONSUMER.CREATE, in all forms of its subject."""
    return await _create(call, durable=False)


async def create_durable(call: Call) -> Parts:
    """CONSUMER.DURABLE.CREATE, of old clients."""
    return await _create(call, durable=True)


async def _create(call: Call, *, durable: bool) -> Parts:
    request = call.body(CreateConsumerRequest)
    call.check_common()
    config = request.config
    if config.deliver_policy == "undefined":
        config.deliver_policy = "all"  # Go writes "undefined" for a value that it does not know
    _check_names(call, request, durable=durable)
    if config.num_replicas > 1:
        raise ApiError(errors.REPLICAS_NOT_SUPPORTED)
    account = call.account
    stream = account.stream(call.stream_name)
    if config.direct and config.sourcing and config.name:
        _set_sourcing(stream, config)
    unnamed = not config.name and not config.durable_name
    if not config.name:
        config.name = config.durable_name or checks.random_name()
    server = account.context.config
    known = account.consumers.get(stream, config.name)
    checks.set_defaults(config, stream.config, account.limits, server, pedantic=request.pedantic)
    checks.set_threshold(config, known.config if known is not None else None)
    checks.check(config, stream.config, account.limits, server)
    if known is not None:
        return await _update(call, known, request)
    if request.action == "update":
        raise ApiError(errors.CONSUMER_DOES_NOT_EXIST)
    _check_count(call, stream, config)
    if stream.config.retention == "workqueue" and not config.sourcing:
        checks.check_workqueue(config, _others(stream, config.name))
    consumer = await account.consumers.create(stream, config, unnamed=unnamed)
    info = _shown(consumer)  # before it delivers anything
    consumer.start()
    return (info,)


def _set_sourcing(stream: Stream, config: ConsumerConfig) -> None:
    """Complete the configuration of the consumer of a mirror or source. If the stream removes acked
    messages, it is a durable consumer with the ack policy flow_control. Otherwise a random suffix
    makes its name unique."""
    if stream.config.retention == "limits":
        config.name = f"{config.name}-{checks.random_name()}"
        return
    config.direct = False
    config.durable_name = config.name
    config.ack_policy = "flow_control"
    config.ack_wait = config.max_deliver = config.inactive_threshold = 0


def _check_names(call: Call, request: CreateConsumerRequest, *, durable: bool) -> None:
    config = request.config
    if request.stream_name != call.stream_name:
        raise ApiError(errors.STREAM_MISMATCH)
    named = call.tokens[1:]
    for name in (config.durable_name, "" if durable else config.name, *named[:1]):
        checks.check_path(name)
    if named:
        checks.name_by_subject(config, named[0], ".".join(named[1:]), durable=durable)
    else:
        checks.check_unnamed(config)


def _others(stream: Stream, name: str) -> list[ConsumerConfig]:
    return [
        other.config
        for key, other in stream.consumers.items()
        if key != name and not other.config.direct and not other.config.sourcing
    ]


def _check_count(call: Call, stream: Stream, config: ConsumerConfig) -> None:
    if config.direct or config.sourcing:
        return
    account = call.account
    bounds = [
        most for most in (stream.config.max_consumers, account.limits.max_consumers) if most > 0
    ]
    for most in bounds or [account.context.config.max_consumers]:
        # `_others` is linear: it is called only if the limit may be reached
        if 0 < most <= len(stream.consumers) and most <= len(_others(stream, config.name)):
            raise ApiError(errors.CONSUMERS_MAX)


async def _update(call: Call, consumer: Consumer, request: CreateConsumerRequest) -> Parts:
    old, config = consumer.config, request.config
    config.pause_until = old.pause_until
    is_reset = bool(config.sourcing and config.durable_name)
    if is_reset:
        config.deliver_policy = old.deliver_policy
        config.opt_start_seq, config.opt_start_time = old.opt_start_seq, old.opt_start_time
    if checks.is_same(old, config):
        if is_reset:
            consumer.reset(0)
        return (_shown(consumer),)
    if request.action == "create":
        raise ApiError(errors.CONSUMER_EXISTS)
    checks.check_update(old, config)
    if old.deliver_subject != config.deliver_subject and consumer.push_bound:
        raise ApiError(errors.CONSUMER_NAME_EXISTS)
    stream = consumer.stream
    if stream.config.retention == "workqueue" and not config.sourcing:
        checks.check_workqueue(config, _others(stream, config.name))
    await call.account.consumers.update(consumer, config)
    if is_reset:
        consumer.reset(0)
    return (_shown(consumer),)


# --- one consumer --------------------------------------------------------------------------------


def info(call: Call) -> Parts:
    """CONSUMER.INFO."""
    return (_shown(_found(call)[2]),)


async def delete(call: Call) -> Parts:
    """CONSUMER.DELETE."""
    consumers, _, consumer = _found(call)
    await consumers.delete(consumer)
    return (Success(success=True),)


async def pause(call: Call) -> Parts:
    """CONSUMER.PAUSE: pause a consumer, or resume it."""
    request = call.optional(PauseRequest)
    call.check_common()
    consumers, _, consumer = _found(call)
    until = time_ns(request.pause_until)
    await consumers.pause(consumer, time_text(until) if until else "")
    left = until - time.time_ns()
    answer = PauseAnswer(paused=left > 0, pause_until=time_text(until))
    answer.pause_remaining = min(max(0, left), INT64_MAX)
    return (answer,)


def unpin(call: Call) -> Parts:
    """CONSUMER.UNPIN."""
    request = decode(call.request.data, UnpinRequest, strict=False)
    if not request.group:
        raise ApiError(errors.INVALID_JSON, err="consumer group not specified")
    checks.check_group_name(request.group)
    _, _, consumer = _found(call)
    if request.group not in consumer.config.priority_groups:
        raise ApiError(errors.PRIORITY_GROUP_UNKNOWN)
    consumer.unpin()
    return ()


async def reset(call: Call) -> Parts:
    """CONSUMER.RESET: continue at a sequence, or after the ack floor."""
    _, stream, consumer = _found(call)
    call.check_common()
    request = ResetRequest()
    if call.request.data:
        request = decode(call.request.data, ResetRequest, strict=False)
    config = consumer.config
    seq = request.seq
    if seq == 0:
        seq = consumer.cursor.ack_floor[1] + 1
    elif config.deliver_policy == "by_start_sequence":
        if seq < config.opt_start_seq:
            raise ApiError(errors.CONSUMER_RESET, err="below start seq")
    elif config.deliver_policy == "by_start_time":
        find = start_search(stream.store, config)
        if find is not None and seq < await asyncio.to_thread(find):
            raise ApiError(errors.CONSUMER_RESET, err="below start time")
    elif config.deliver_policy != "all":
        raise ApiError(errors.CONSUMER_RESET, err="not allowed")
    seq = clamp_seq(stream.store, seq)
    consumer.reset(seq)
    return _shown(consumer), ResetAnswer(reset_seq=seq)


# --- lists ---------------------------------------------------------------------------------------


def names(call: Call) -> Parts:
    """CONSUMER.NAMES."""
    request = call.optional(PageRequest)
    stream = call.account.stream(call.stream_name)
    found = [consumer.name for consumer in call.account.consumers.visible(stream)]
    start, size = paged(request.offset, len(found)), limits.JS_NAMES_PAGE
    page = found[start : start + size]
    return (ConsumerNamesAnswer(total=len(found), offset=start, limit=size, consumers=page),)


def listed(call: Call) -> Parts:
    """CONSUMER.LIST."""
    request = call.optional(PageRequest)
    account = call.account
    stream = account.stream(call.stream_name)
    found = list(account.consumers.visible(stream))
    start, size = paged(request.offset, len(found)), limits.JS_LIST_PAGE
    answer = ConsumerListAnswer(
        total=len(found),
        offset=start,
        limit=size,
        consumers=[consumer.info() for consumer in found[start : start + size]],
    )
    answer.offline = {
        name: problem
        for (owner, name), problem in account.consumers.offline.items()
        if owner == stream.name
    }
    return (answer,)


_SILENT: Final = frozenset({errors.CONSUMER_NOT_FOUND.err_code, errors.STREAM_NOT_FOUND.err_code})

VERBS: Final[dict[str, Any]] = {
    "CONSUMER.CREATE": Verb("consumer_create", create, (1, 2), rest=True, reads_first=True),
    "CONSUMER.DURABLE.CREATE": Verb("consumer_create", create_durable, (2,), reads_first=True),
    "CONSUMER.INFO": Verb("consumer_info", info, (2,), empty=True),
    "CONSUMER.DELETE": Verb("consumer_delete", delete, (2,), empty=True),
    "CONSUMER.PAUSE": Verb(
        "consumer_pause", pause, (2,), reads_first=True, on_error=(PauseAnswer(),)
    ),
    "CONSUMER.UNPIN": Verb("consumer_unpin", unpin, (2,)),
    "CONSUMER.RESET": Verb(
        "consumer_reset",
        reset,
        (2,),
        on_error=(ResetAnswer(),),
        reads_first=True,  # a consumer that does not exist answers nothing
        silent=_SILENT,
        counted=False,  # in nats-server it is no request of the API: the consumer receives it
        errors_counted=False,
    ),
    "CONSUMER.NAMES": Verb("consumer_names", names, on_error=(ConsumerNamesAnswer(),)),
    "CONSUMER.LIST": Verb("consumer_list", listed, on_error=(ConsumerListAnswer(),)),
}
