"""Sets the defaults of a stream's configuration and checks it, in the order of nats-server: the
answer reports the first broken rule (server/stream.go, checkStreamCfg).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from broker.base.gotext import duration_text, go_quote
from broker.base.patterns import lazy_pattern
from broker.base.values import dataclass
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import SubjectTransform, encode
from broker.protocols.nats.accounts.overlaps import PatternSet
from broker.protocols.nats.accounts.placeholders import MappingError, compile_tokens
from broker.protocols.nats.accounts.subjects import collide, has_wildcard, is_subject, lies_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from broker.protocols.jetstream.errors import ErrorRow
    from broker.protocols.jetstream.structs import StreamConfig, StreamSource

_NAME: Final = lazy_pattern(r"[^ .*>/\\\t\r\n\f]+")
_BAD_NAME: Final = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
_COUNTS: Final = (
    "max_msgs",
    "max_msgs_per_subject",
    "max_bytes",
    "max_msg_size",
    "max_consumers",
)
_API: Final = ("$JS.>", "$JSC.>", "$NRG.>")
_API_EVENTS: Final = "$JS.EVENT.>"
_API_PREFIX: Final = "$JS.API"


@dataclass(frozen=True, slots=True)
class Environment:
    """The stream's account and server, as far as a configuration depends on them."""

    config_of: Callable[[str], StreamConfig | None]  # of the account's stream of this name
    duplicate_window_max: int = 0  # limit of the server in ns; 0 = no limit
    pedantic: bool = False  # a value that would be corrected is refused


def refuse(text: str) -> NoReturn:
    """Raise ApiError 10052 with this text."""
    raise ApiError(errors.STREAM_CONFIG, err=text)


def _refuse_pedantic(text: str) -> NoReturn:
    raise ApiError(errors.PEDANTIC, err=text)


def check_count(what: str, count: int, most: int) -> None:
    """ApiError 10052: a list of a configuration has more than `most` entries."""
    if count > most:
        refuse(f"too many {what}: {count}, maximum allowed is {most}")


def check_tokens(what: str, subjects: Iterable[str]) -> None:
    """10052 if the subjects of a list have too many tokens together."""
    tokens = sum(subject.count(".") + 1 for subject in subjects)
    check_count(f"tokens in {what}", tokens, limits.JS_TOKENS_MAX)


def is_name(name: str) -> bool:
    """Whether this is a valid name of a stream."""
    return _NAME.fullmatch(name) is not None


def complete(config: StreamConfig, environment: Environment) -> None:
    """Set the defaults of a configuration and check it. ApiError: the first broken rule."""
    if config.persist_mode == "default":
        config.persist_mode = ""  # answers omit the default
    _check_names(config)
    _check_counts(config, environment)
    _check_times(config, environment)
    _check_features(config, environment)
    if config.mirror is not None:
        _check_mirror(config, config.mirror, environment)
    _check_sources(config, environment)
    _check_externals(config, environment)
    _check_cycle(config, environment)
    _check_subjects(config)
    _check_mappings(config, environment)
    _check_placement(config)


def _check_names(config: StreamConfig) -> None:
    if not is_name(config.name):
        refuse(_BAD_NAME)
    if len(config.name) > limits.JS_NAME_MAX:
        refuse(f"stream name is too long, maximum allowed is {limits.JS_NAME_MAX}")
    if len(config.description.encode()) > limits.JS_DESCRIPTION_MAX:
        refuse(f"stream description is too long, maximum allowed is {limits.JS_DESCRIPTION_MAX}")
    if metadata_bytes(config.metadata) > limits.JS_METADATA_MAX:
        refuse(f"stream metadata exceeds maximum size of {limits.JS_METADATA_MAX} bytes")
    if config.num_replicas == 0:
        config.num_replicas = 1
    if config.num_replicas > limits.JS_REPLICAS_MAX:
        refuse(f"maximum replicas is {limits.JS_REPLICAS_MAX}")
    if config.num_replicas < 0:
        raise ApiError(errors.REPLICAS_NEGATIVE)


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """The size of metadata in bytes, to which JS_METADATA_MAX applies."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())


def check_first_seq(config: StreamConfig) -> None:
    """ApiError 10052: the first sequence of a new stream is too high."""
    if config.first_seq > limits.JS_SEQ_MAX:
        refuse(f"first sequence must not be above {limits.JS_SEQ_MAX}")


def _check_counts(config: StreamConfig, environment: Environment) -> None:
    for name in _COUNTS:
        value = getattr(config, name)
        if value < -1 and environment.pedantic:
            _refuse_pedantic(f"{name} must be set to -1")
        if value == 0 or value < -1:
            setattr(config, name, -1)


def _check_times(config: StreamConfig, environment: Environment) -> None:
    age, most = config.max_age, environment.duplicate_window_max
    if age < 0:
        refuse("max age can not be negative")
    if 0 < age < limits.JS_MAX_AGE_MIN:
        refuse("max age needs to be >= 100ms")
    if config.duplicate_window == 0 and config.mirror is None and not config.sources:
        window = limits.JS_DUPLICATE_WINDOW
        if most and window > most:
            if environment.pedantic:
                _refuse_pedantic("duplicate window limits are higher than current limits")
            window = most
        if 0 < age < window:
            if environment.pedantic:
                _refuse_pedantic("duplicate window cannot be bigger than max age")
            window = age
        config.duplicate_window = window
    window = config.duplicate_window
    if window < 0:
        refuse("duplicates window can not be negative")
    if 0 < age < window:
        refuse("duplicates window can not be larger then max age")
    if most and window > most:
        text = duration_text(most)
        refuse(f"duplicates window can not be larger then server limit of {text}")
    if 0 < window < limits.JS_DUPLICATE_WINDOW_MIN:
        refuse("duplicates window needs to be >= 100ms")


def _check_features(config: StreamConfig, environment: Environment) -> None:
    if config.deny_purge and config.allow_rollup_hdrs:
        refuse("roll-ups require the purge permission")
    if config.allow_msg_counter:
        _check_counter(config)
    if config.discard_new_per_subject:
        if config.discard != "new":
            refuse("discard new per subject requires discard new policy to be set")
        if config.max_msgs_per_subject <= 0:
            refuse("discard new per subject requires max msgs per subject > 0")
    _check_markers(config, environment)
    if config.allow_msg_schedules:
        if config.discard == "new":
            refuse("message scheduling cannot use discard new")
        if not config.allow_rollup_hdrs:
            if environment.pedantic:
                refuse("message scheduling cannot be set if roll-ups are disabled")
            config.allow_rollup_hdrs, config.deny_purge = True, False
    if config.persist_mode == "async":
        _check_async_persist(config)


def _check_async_persist(config: StreamConfig) -> None:
    if config.storage != "file":
        refuse("async persist mode is only supported on file storage")
    if config.num_replicas > 1:
        refuse("async persist mode is not supported on replicated streams")
    if config.allow_atomic:
        refuse("async persist mode is not supported with atomic batch publish")


def _check_counter(config: StreamConfig) -> None:
    if config.discard == "new":
        refuse("counter stream cannot use discard new")
    if config.allow_msg_ttl:
        refuse("counter stream cannot use message TTLs")
    if config.retention != "limits":
        refuse("counter stream can only use limits retention")
    if config.allow_msg_schedules:
        refuse("counter stream cannot use message schedules")


def _check_markers(config: StreamConfig, environment: Environment) -> None:
    ttl = config.subject_delete_marker_ttl
    if ttl < 0:
        refuse("subject delete marker TTL must not be negative")
    if ttl == 0:
        return
    if ttl < limits.JS_MARKER_TTL_MIN:
        refuse("subject delete marker TTL must be at least 1 second")
    if not config.allow_msg_ttl:
        if environment.pedantic:
            refuse("subject delete marker cannot be set if message TTLs are disabled")
        config.allow_msg_ttl = True
    if not config.allow_rollup_hdrs:
        if environment.pedantic:
            refuse("subject delete marker cannot be set if roll-ups are disabled")
        config.allow_rollup_hdrs, config.deny_purge = True, False


# --- origins -------------------------------------------------------------------------------------


def _check_mirror(config: StreamConfig, mirror: StreamSource, environment: Environment) -> None:
    exclusive: tuple[tuple[object, ErrorRow], ...] = (
        (config.first_seq, errors.MIRROR_FIRST_SEQ),
        (config.subjects, errors.MIRROR_WITH_SUBJECTS),
        (config.sources, errors.MIRROR_WITH_SOURCES),
        (config.allow_msg_counter, errors.MIRROR_WITH_COUNTER),
        (config.allow_atomic, errors.MIRROR_WITH_ATOMIC),
        (config.allow_batched, errors.MIRROR_WITH_BATCH),
        (config.allow_msg_schedules, errors.MIRROR_WITH_SCHEDULES),
        (not _can_be_read(mirror), errors.MIRROR_CONSUMER),
        (mirror.filter_subject and mirror.subject_transforms, errors.MIRROR_FILTER_AND_TRANSFORMS),
    )
    for used, row in exclusive:
        if used:
            raise ApiError(row)
    if config.subject_delete_marker_ttl > 0:
        refuse("subject delete markers forbidden on mirrors")
    rows = errors.MIRROR_TRANSFORM_SOURCE, errors.MIRROR_TRANSFORM, errors.MIRROR_FILTERS_OVERLAP
    _check_transforms(mirror.subject_transforms, *rows)
    if not is_name(mirror.name):
        raise ApiError(errors.MIRROR_NAME)
    if mirror.external is not None:
        return
    if mirror.name == config.name:
        refuse("detected cycle")
    origin = environment.config_of(mirror.name)
    if origin is not None:
        if 0 <= config.max_msg_size < _size_max(origin):
            raise ApiError(errors.MIRROR_MSG_SIZE)
        if origin.allow_direct != config.mirror_direct:
            if environment.pedantic:
                _refuse_pedantic("origin stream has direct get set, mirror has it disabled")
            config.mirror_direct = origin.allow_direct
        if mirror.opt_start_seq and mirror.opt_start_time:
            raise ApiError(errors.MIRROR_START_SEQ_AND_TIME)


def _can_be_read(source: StreamSource) -> bool:
    """Whether the durable consumer that reads an origin is valid, or there is none."""
    consumer = source.consumer
    return consumer is None or (
        is_name(consumer.name)
        and is_subject(consumer.deliver_subject)
        and not has_wildcard(consumer.deliver_subject)
        and not (source.opt_start_seq or source.opt_start_time or source.filter_subject)
    )


def _size_max(origin: StreamConfig) -> int:
    return max(0, origin.max_msg_size)


def _check_sources(config: StreamConfig, environment: Environment) -> None:
    seen: set[bytes] = set()
    consumers: set[bytes] = set()
    rows = errors.SOURCE_TRANSFORM_SOURCE, errors.SOURCE_TRANSFORM, errors.SOURCE_FILTERS_OVERLAP
    check_count("sources of a stream", len(config.sources), limits.JS_SOURCES_MAX)
    if config.sources and config.allow_msg_schedules:
        raise ApiError(errors.SOURCE_WITH_SCHEDULES)
    for source in config.sources:
        if not is_name(source.name):
            raise ApiError(errors.SOURCE_NAME)
        same = encode((source.name, source.filter_subject, source.subject_transforms,
                       source.external))  # fmt: skip
        if same in seen:
            raise ApiError(errors.SOURCE_DUPLICATE)
        seen.add(same)
        if source.filter_subject and source.subject_transforms:
            raise ApiError(errors.SOURCE_FILTER_AND_TRANSFORMS)
        _check_transforms(source.subject_transforms, *rows)
        if not _can_be_read(source):
            raise ApiError(errors.SOURCE_CONSUMER)
        if source.consumer is not None:
            same = encode((source.name, source.external, source.consumer.name))
            if same in consumers:
                raise ApiError(errors.SOURCE_CONSUMER_DUPLICATE)
            consumers.add(same)
        origin = environment.config_of(source.name) if source.external is None else None
        if origin is not None and 0 <= config.max_msg_size < _size_max(origin):
            raise ApiError(errors.SOURCE_MSG_SIZE)


def _check_transforms(
    transforms: list[SubjectTransform], bad: ErrorRow, invalid: ErrorRow, overlap: ErrorRow
) -> None:
    what = "subject transforms of a mirror or source"
    check_count(what, len(transforms), limits.JS_TRANSFORMS_MAX)
    check_tokens(what, (each.src for each in transforms))
    for each in transforms:
        if each.src and not is_subject(each.src):
            raise ApiError(bad, err=f"invalid subject {each.src}")
        problem = mapping_problem(each.src, each.dest)
        if problem:
            raise ApiError(invalid, err=problem)
    if PatternSet(each.src or ">" for each in transforms).has_overlaps():
        raise ApiError(overlap)


def mapping_problem(source: str, destination: str) -> str:
    """Why a subject transform is invalid; empty: it is valid. One without a destination is only a
    filter."""
    if not destination:
        return ""
    try:
        compile_tokens(source or ">", destination, strict=False)
    except MappingError as problem:
        return str(problem)
    return ""


def _check_externals(config: StreamConfig, environment: Environment) -> None:
    origins = [*config.sources, *([config.mirror] if config.mirror is not None else [])]
    for origin in origins:
        external = origin.external
        if external is None:
            continue
        api, deliver = external.api, external.deliver
        if api and (not is_subject(api) or has_wildcard(api)):
            text = f"stream external api prefix {go_quote(api)} must be a valid subject"
            refuse(f"{text} without wildcards")
        if api and collide(f"{api}.>", f"{_API_PREFIX}.>"):
            raise ApiError(errors.EXTERNAL_API_OVERLAP, prefix=api, subject=_API_PREFIX)
        if deliver and (not is_subject(deliver) or has_wildcard(deliver)):
            raise ApiError(errors.EXTERNAL_DELIVER_WILDCARDS, prefix=deliver)
        known = environment.config_of(origin.name)
        for subject in known.subjects if known is not None and deliver else ():
            if collide(f"{deliver}.{subject}", subject):
                row = errors.EXTERNAL_DELIVER_OVERLAP
                raise ApiError(row, prefix=deliver, subject=subject)


def _check_cycle(config: StreamConfig, environment: Environment) -> None:
    """Refuse a stream that would copy its own messages from one of its origins."""
    seen: set[str] = set()
    left = _origins(config)
    while left:
        name = left.pop()
        if name == config.name:
            refuse("detected cycle")
        other = environment.config_of(name)
        if name not in seen and other is not None:
            seen.add(name)
            left += _origins(other)


def _origins(config: StreamConfig) -> list[str]:
    names = [source.name for source in config.sources if source.external is None]
    if config.mirror is not None and config.mirror.external is None:
        names.append(config.mirror.name)
    return names


# --- subjects ------------------------------------------------------------------------------------


def _check_subjects(config: StreamConfig) -> None:
    if not config.subjects:
        if config.mirror is None and not config.sources:
            config.subjects = [config.name]
        return
    check_count("subjects of a stream", len(config.subjects), limits.JS_SUBJECTS_MAX)
    check_tokens("subjects of a stream", config.subjects)
    patterns = PatternSet(config.subjects)
    for index, subject in enumerate(config.subjects):
        _check_subject(config, subject)
        other = patterns.first_overlap(subject, index)
        if other is not None:
            refuse(f"subject {go_quote(other)} overlaps with {go_quote(subject)}")


def _check_subject(config: StreamConfig, subject: str) -> None:
    if not is_subject(subject):
        refuse("invalid subject")
    if config.no_ack:
        return
    if subject == ">":
        refuse("capturing all subjects requires no-ack to be true")
    if any(collide(subject, api) for api in _API) and not lies_within(subject, _API_EVENTS):
        refuse("subjects that overlap with jetstream api require no-ack to be true")
    if collide(subject, "$SYS.>") and not lies_within(subject, "$SYS.ACCOUNT.>"):
        refuse("subjects that overlap with system api require no-ack to be true")


def _check_mappings(config: StreamConfig, environment: Environment) -> None:
    transform = config.subject_transform
    if transform is not None:
        if transform.src and not is_subject(transform.src):
            raise ApiError(errors.STREAM_TRANSFORM_SOURCE, err=f"invalid subject {transform.src}")
        transform.src = transform.src or ">"
        problem = mapping_problem(transform.src, transform.dest)
        if problem:
            raise ApiError(errors.STREAM_TRANSFORM, err=problem)
    republish = config.republish
    if republish is None:
        return
    if not republish.src:
        if environment.pedantic:
            _refuse_pedantic("republish source can not be empty")
        republish.src = ">"
    if any(collide(republish.dest, subject) for subject in config.subjects):
        refuse("stream configuration for republish destination forms a cycle")
    if not republish.dest or mapping_problem(republish.src, republish.dest):
        text = f"from '{republish.src}' to '{republish.dest}' not valid"
        refuse(f"stream configuration for republish with transform {text}")


def _check_placement(config: StreamConfig) -> None:
    placement = config.placement
    if placement is None:
        return
    if placement.preferred:
        refuse("preferred server not permitted in placement")
    if not placement.cluster and not placement.tags:
        config.placement = None


# --- updates -------------------------------------------------------------------------------------


def check_update(old: StreamConfig, new: StreamConfig) -> None:
    """Refuse changes that are not allowed, and set the fields that a sealed stream requires.
    ApiError."""
    change: Callable[[str], NoReturn] = _refuse_change
    if new.name != old.name:
        refuse("stream configuration name must match original")
    if new.storage != old.storage:
        change("can not change storage type")
    if new.retention != old.retention and "workqueue" in (new.retention, old.retention):
        change("can not change retention policy to/from workqueue")
    if old.sealed and not new.sealed:
        change("can not unseal a sealed stream")
    if old.deny_delete and not new.deny_delete:
        change("can not cancel deny message deletes")
    if old.deny_purge and not new.deny_purge:
        change("can not cancel deny purge")
    if new.sealed:
        new.max_age = 0
        new.discard = "new"
        new.deny_delete = new.deny_purge = True
        new.allow_rollup_hdrs = False
    if new.mirror is not None and new.mirror != old.mirror:
        raise ApiError(errors.MIRROR_NOT_UPDATABLE)
    if old.allow_msg_ttl and not new.allow_msg_ttl:
        refuse("message TTL status can not be disabled")
    if old.allow_msg_counter != new.allow_msg_counter:
        change("can not change message counter setting")
    if old.allow_msg_schedules and not new.allow_msg_schedules:
        refuse("message schedules can not be disabled")
    if (old.persist_mode or "default") != (new.persist_mode or "default"):
        change("can not change persist mode")


def _refuse_change(text: str) -> NoReturn:
    refuse(f"stream configuration update {text}")
