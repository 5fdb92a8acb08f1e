"""The verbs STREAM.CREATE, UPDATE, INFO, NAMES, LIST, DELETE."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from broker.engine.stream.listing import SubjectList
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.api import checks, metadata
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import (
    ClusterInfo,
    Created,
    Page,
    RestoreAnswer,
    RestoreRequest,
    SnapshotAnswer,
    SnapshotRequest,
    StreamConfig,
    StreamConfigRequest,
    StreamInfo,
    StreamInfoRequest,
    StreamListAnswer,
    StreamListRequest,
    StreamNamesAnswer,
    StreamNamesRequest,
    StreamState,
    Success,
    copied,
    encode,
    now_text,
    time_text,
)
from broker.protocols.nats.accounts.overlaps import PatternSet
from broker.protocols.nats.accounts.subjects import collide, has_wildcard, is_subject, raw
from broker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.api.dispatch import Call, Parts
    from broker.protocols.jetstream.publish.stream import Stream


_TOO_MANY: Final = "too many snapshots and restorations are in progress"

# --- create and update ---------------------------------------------------------------------------


def _requested(call: Call) -> tuple[StreamConfig, bool]:
    """The configuration in a request, and whether it is pedantic. ApiError 10025, 10056, 10128."""
    request = call.body(StreamConfigRequest)
    if request.name != call.stream_name:
        raise ApiError(errors.STREAM_MISMATCH)
    if "/" in request.name or "\\" in request.name:
        raise ApiError(errors.STREAM_NAME_PATH)
    names = StreamConfig.__struct_fields__
    return StreamConfig(**{name: getattr(request, name) for name in names}), request.pedantic


def _environment(account: JetStreamAccount, *, pedantic: bool) -> checks.Environment:
    return checks.Environment(
        account.config_of,
        account.context.config.duplicate_window_ns,
        pedantic,
    )


def _complete(account: JetStreamAccount, config: StreamConfig, *, pedantic: bool) -> None:
    checks.complete(config, _environment(account, pedantic=pedantic))
    level = metadata.stream_level(config)
    config.metadata = metadata.stored(config.metadata, level)


async def create(call: Call) -> Parts:
    """STREAM.CREATE: a new stream, or the existing one if it has the same configuration."""
    account = call.account
    config, pedantic = _requested(call)
    if config.sealed:
        checks.refuse("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        checks.refuse("stream has no mirror but does have mirror direct")
    _check_limits(account, config)
    _complete(account, config, pedantic=pedantic)
    if config.num_replicas > 1:
        raise ApiError(errors.REPLICAS_NOT_SUPPORTED)
    known = account.streams.get(config.name)
    if known is not None:
        if not _is_same(known.config, config):
            raise ApiError(errors.STREAM_NAME_EXISTS)
    elif config.name in account.offline or config.name in account.restoring:
        known = account.stream(config.name)  # raises the reason
    else:
        checks.check_first_seq(config)
        _check_room(account, config)
        await _check_overlap_in_parts(account, config)
        known = await account.create(config)
        account.stream_advisory("CREATED", config.name, "create")
    return info_of(account, known), Created(did_create=True)


def _is_same(one: StreamConfig, other: StreamConfig) -> bool:
    """Whether the configurations are equal, apart from the server's metadata and defaults."""
    first, second = copied(one), copied(other)
    for each in (first, second):
        each.metadata = metadata.users(each.metadata)
        each.persist_mode = each.persist_mode or "default"
    return first == second


def _check_limits(account: JetStreamAccount, config: StreamConfig) -> None:
    """Check the account's limits for one stream. ApiError 10120, 10113, 10122, 10026."""
    most = account.limits
    if account.tiers and "R1" not in account.tiers:
        raise ApiError(errors.NO_LIMITS)
    if most.max_bytes_required and config.max_bytes <= 0:
        raise ApiError(errors.MAX_BYTES_REQUIRED)
    in_file = config.storage == "file"
    size = most.storage_max_stream_bytes if in_file else most.memory_max_stream_bytes
    if 0 < size < config.max_bytes:
        raise ApiError(errors.MAX_STREAM_BYTES)
    if 0 < most.max_consumers < config.max_consumers:
        raise ApiError(errors.CONSUMERS_MAX)


def _check_room(account: JetStreamAccount, config: StreamConfig) -> None:
    """Check the number of streams and the bytes they reserve. ApiError 10027, 10047, 10028."""
    most = account.limits.max_streams
    if 0 < most <= len(account.streams):
        raise ApiError(errors.STREAMS_MAX)
    _check_reserved(account, config)


def _check_reserved(account: JetStreamAccount, config: StreamConfig) -> None:
    if config.max_bytes <= 0:
        return
    storage, name = config.storage, config.name
    row = errors.STORAGE_RESOURCES if storage == "file" else errors.MEMORY_RESOURCES
    limit, context = account.limit(storage), account.context
    if 0 <= limit < account.reserved(storage, name) + config.max_bytes:
        raise ApiError(row)
    all_of_them = context.reserved(storage, account.name, name) + config.max_bytes
    if all_of_them > context.capacity(storage):
        raise ApiError(row)


def _check_overlap(account: JetStreamAccount, config: StreamConfig) -> None:
    """ApiError 10065: another stream of the account stores one of the subjects."""
    patterns = PatternSet(config.subjects)
    for stream in _near(account, config):
        if any(map(patterns.overlaps, stream.config.subjects)):
            raise ApiError(errors.SUBJECTS_OVERLAP)


def _near(account: JetStreamAccount, config: StreamConfig) -> list[Stream]:
    """The other streams of which a subject may overlap with one of these."""
    names = dict.fromkeys(account.owners.near(map(raw, config.subjects)))
    return [account.streams[name] for name in names if name != config.name]


async def _check_overlap_in_parts(account: JetStreamAccount, config: StreamConfig) -> None:
    """The same, with pauses in which clients are served. When this returns, it is true for the
    current configurations of all streams."""
    patterns, seen = PatternSet(config.subjects), dict[str, StreamConfig]()
    pauses = Pauses(limits.JS_REQUESTS_TURN)
    while True:
        # Streams that have changed meanwhile are checked again.
        left = [s for s in _near(account, config) if seen.get(s.name) is not s.config]
        if not left:
            return
        for stream in left:
            if any(map(patterns.overlaps, stream.config.subjects)):
                raise ApiError(errors.SUBJECTS_OVERLAP)
            seen[stream.name] = stream.config
            await pauses.pause_if_step_over()


async def update(call: Call) -> Parts:
    """STREAM.UPDATE: another configuration for an existing stream."""
    account = call.account
    config, pedantic = _requested(call)
    _complete(account, config, pedantic=pedantic)
    stream = account.stream(config.name)
    if config.num_replicas > 1:
        raise ApiError(errors.REPLICAS_NOT_SUPPORTED)
    old = stream.config
    checks.check_update(old, config)
    config.first_seq = old.first_seq
    _check_limits(account, config)
    if config.max_bytes > old.max_bytes:
        _check_reserved(account, config)
    await _check_overlap_in_parts(account, config)
    _check_consumer_limits(stream, config)
    if not _is_same(old, config):
        await account.update(stream, config)
    account.stream_advisory("UPDATED", config.name, "modify")
    return (info_of(account, stream),)


def _check_consumer_limits(stream: Stream, config: StreamConfig) -> None:
    """ApiError 10069: the configurations of consumers exceed the new limits."""
    most = config.consumer_limits
    names = []
    for name, consumer in stream.consumers.items():
        own = consumer.config
        if (0 < most.max_ack_pending < own.max_ack_pending) or (
            0 < most.inactive_threshold < own.inactive_threshold
        ):
            names.append(name)
    if names:
        text = ", ".join(sorted(names))
        raise ApiError(errors.STREAM_UPDATE, err=f"change to limits violates consumers: {text}")


# --- info ----------------------------------------------------------------------------------------


def info_of(account: JetStreamAccount, stream: Stream, *, own_metadata: bool = True) -> StreamInfo:
    """The stream in an answer. `own_metadata`: with the version and API level of this server."""
    config = stream.config
    if own_metadata:
        config = shown_config(config)
    return StreamInfo(
        config=config,
        created=time_text(stream.created_ns),
        state=state_of(stream),
        domain=account.domain,
        mirror=account.origins.mirror(stream),
        sources=account.origins.sources(stream),
        ts=now_text(),
    )


def shown_config(config: StreamConfig) -> StreamConfig:
    """The configuration in an answer."""
    names = StreamConfig.__struct_fields__
    found = StreamConfig(**{name: getattr(config, name) for name in names})
    found.metadata = metadata.shown(config.metadata)
    return found


def state_of(stream: Stream) -> StreamState:
    """The state of a stream, without lists."""
    store = stream.store
    return StreamState(
        messages=store.messages,
        bytes=store.bytes,
        first_seq=store.first_seq if store.last_seq else 0,
        first_ts=time_text(store.first_ns),
        last_seq=store.last_seq,
        last_ts=time_text(store.last_ns if store.last_seq >= stream.config.first_seq else 0),
        num_subjects=store.subjects.size,
        num_deleted=store.num_deleted,
        consumer_count=stream.consumer_count,
    )


def info(call: Call) -> Parts | Awaitable[Parts]:
    """STREAM.INFO, with the lists in the request."""
    request = call.optional(StreamInfoRequest)
    if is_subject(request.subjects_filter):
        return _info_with_subjects(call, request)
    return Page(), _detailed_info(call, request)


def _detailed_info(call: Call, request: StreamInfoRequest) -> StreamInfo:
    account = call.account
    stream = account.stream(call.stream_name)
    found = info_of(account, stream)
    found.cluster = ClusterInfo(leader=account.context.server_name)
    if request.deleted_details:
        found.state.deleted = stream.store.deleted(limits.JS_DELETED_MAX)
    return found


async def _info_with_subjects(call: Call, request: StreamInfoRequest) -> Parts:
    page = Page()
    index = call.account.stream(call.stream_name).store.subjects
    wanted = await index.filter_in_turns([request.subjects_filter])
    subjects, pauses = SubjectList(index, wanted), Pauses(limits.JS_REQUESTS_TURN)
    while subjects.copy_more():
        await pauses.pause_if_step_over()
    text = None
    if subjects.size:
        await _sort(subjects, request.offset, page)
        text = await _encoded(subjects, page)
    found = _detailed_info(call, request)  # ApiError: the stream was deleted meanwhile
    if text is not None:
        found.state.subjects = text
    return page, found


async def _sort(subjects: SubjectList, offset: int, page: Page) -> None:
    """Sort the subjects of a page that begins at this offset."""
    page.limit = limits.JS_SUBJECTS_PAGE
    start = paged(offset, subjects.size)
    if subjects.size <= limits.JS_SUBJECTS_STEP:
        subjects.sort(start, page.limit)
    else:
        await asyncio.to_thread(subjects.sort, start, page.limit)
    page.total = subjects.size  # without those that were copied twice
    page.offset = paged(offset, page.total)


async def _encoded(subjects: SubjectList, page: Page) -> Raw | None:
    """The JSON object of the subjects of this page, with their counts; None: it has no subject."""
    end = min(page.total, page.offset + page.limit)
    parts: list[bytes] = []
    pauses = Pauses(limits.JS_REQUESTS_TURN)
    for first in range(page.offset, end, limits.JS_SUBJECTS_STEP):
        await pauses.pause_if_step_over()
        part = subjects.part(first, min(end - first, limits.JS_SUBJECTS_STEP))
        parts.append(encode(dict(part))[1:-1])
    return Raw(b"{" + b",".join(parts) + b"}") if parts else None


# --- lists ---------------------------------------------------------------------------------------


def _matching(account: JetStreamAccount, subject: str) -> list[Stream]:
    patterns = PatternSet([subject])
    return [
        stream
        for stream in account.sorted_streams()
        if not subject or any(map(patterns.overlaps, stream.config.subjects))
    ]


def paged(offset: int, total: int) -> int:
    """The offset of a page, reduced to the length of the list."""
    return min(max(0, offset), total)


def names(call: Call) -> Parts:
    """STREAM.NAMES."""
    request = call.optional(StreamNamesRequest)
    found = [stream.name for stream in _matching(call.account, request.subject)]
    start, size = paged(request.offset, len(found)), limits.JS_NAMES_PAGE
    page = found[start : start + size]
    return (StreamNamesAnswer(total=len(found), offset=start, limit=size, streams=page or None),)


def listed(call: Call) -> Parts:
    """STREAM.LIST."""
    request = call.optional(StreamListRequest)
    account = call.account
    found = _matching(account, request.subject)
    start, size = paged(request.offset, len(found)), limits.JS_LIST_PAGE
    page = [info_of(account, s, own_metadata=False) for s in found[start : start + size]]
    answer = StreamListAnswer(total=len(found), offset=start, limit=size, streams=page)
    answer.offline = account.offline
    return (answer,)


# --- backups -------------------------------------------------------------------------------------


def snapshot(call: Call) -> Parts:
    """STREAM.SNAPSHOT: after the answer, the stream is sent in messages to a subject."""
    from broker.protocols.jetstream.backup.snapshot import Snapshot

    account = call.account
    request = call.required(SnapshotRequest)
    stream = account.stream(call.stream_name)
    to = request.deliver_subject
    if not is_subject(to) or has_wildcard(to) or not call.may_receive(to):
        raise ApiError(errors.SNAPSHOT_DELIVER_SUBJECT)
    if any(collide(to, subject) for subject in stream.config.subjects):
        raise ApiError(errors.SNAPSHOT_DELIVER_SUBJECT)  # the stream would store its own snapshot
    if len(account.backups) >= limits.JS_BACKUPS_MAX:
        raise ApiError(errors.STREAM_SNAPSHOT, err=_TOO_MANY)
    shown = SnapshotAnswer(config=stream.config, state=state_of(stream))
    account.begin_backup(Snapshot(account, stream, request, shown, call.client()).run())
    return (shown,)


def restore(call: Call) -> Parts:
    """STREAM.RESTORE: create a stream from a snapshot, which the client sends to the subject in the
    answer."""
    from broker.protocols.jetstream.backup.restore import Restoration

    account = call.account
    config = call.required(RestoreRequest).config
    config.name = config.name or call.stream_name
    if config.name != call.stream_name:
        raise ApiError(errors.STREAM_MISMATCH)
    _complete(account, config, pedantic=False)
    checks.check_first_seq(config)
    _check_free(account, config.name)
    account.topics.check(config)
    config.num_replicas = 1
    _check_limits(account, config)
    _check_room(account, config)
    if len(account.backups) >= limits.JS_BACKUPS_MAX:
        raise ApiError(errors.STREAM_RESTORE, err=_TOO_MANY)
    restoration = Restoration(account, config, call.client(), _check_restored, info_of)
    account.begin_backup(restoration.run())
    return (RestoreAnswer(deliver_subject=restoration.subject),)


def _check_free(account: JetStreamAccount, name: str) -> None:
    """ApiError 10130: a stream of this name exists, or is being restored."""
    if name in account.streams or name in account.offline or name in account.restoring:
        raise ApiError(errors.RESTORE_NAME_EXISTS)


def _check_restored(account: JetStreamAccount, config: StreamConfig) -> None:
    """Repeat the checks whose result may have changed. ApiError 10130, 10027, 10047, 10028, 10065,
    10052."""
    _check_free(account, config.name)
    _check_room(account, config)
    _check_overlap(account, config)
    account.topics.check(config)


# --- delete --------------------------------------------------------------------------------------


async def delete(call: Call) -> Parts:
    """STREAM.DELETE: delete a stream, its messages and its consumers."""
    account, name = call.account, call.stream_name
    if name not in account.offline:
        account.stream(name)
    await account.delete(name)
    return (Success(success=True),)
