"""The rules for configurations of consumers: defaults, refusals, updates.

Source: nats-server consumer.go (setConsumerConfigDefaults, checkConsumerCfg).
"""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING, Final

import msgspec

from broker.base.gotext import duration_text, parse_int
from broker.base.units import SECOND
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.api import metadata
from broker.protocols.jetstream.api.checks import check_count, check_tokens
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import ConsumerConfig
from broker.protocols.nats.accounts.overlaps import PatternSet
from broker.protocols.nats.accounts.subjects import has_wildcard, is_subject, lies_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.protocols.jetstream.config import JetStreamConfig
    from broker.protocols.jetstream.structs import (
        AccountLimits,
        StreamConfig,
        StreamConsumerLimits,
    )

LETTERS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
NAME_PROBLEM: Final = "consumer name can not contain '.', '*', '>', '\\', '/'"
FLOW_CONTROL_HEARTBEAT: Final = 1 * SECOND  # required by the ack policy flow_control

NOT_IN_NAMES: Final = frozenset(".*>/\\ \t\r\n\f")
_GROUP_LETTERS: Final = frozenset(string.ascii_letters + string.digits + "-_/=)+")
_DELIVER: Final = {
    "all": "deliver all",
    "last": "deliver last",
    "new": "deliver new",
    "last_per_subject": "deliver last per subject",
    "by_start_sequence": "deliver by start sequence",
    "by_start_time": "deliver by start time",
}
_NOT_UPDATABLE: Final = (
    ("deliver_policy", "deliver policy can not be updated"),
    ("opt_start_seq", "start sequence can not be updated"),
    ("opt_start_time", "start time can not be updated"),
    ("ack_policy", "ack policy can not be updated"),
    ("replay_policy", "replay policy can not be updated"),
    ("idle_heartbeat", "heart beats can not be updated"),
    ("flow_control", "flow control can not be updated"),
    ("mem_storage", "storage type can not be updated"),
    ("direct", "direct can not be updated"),
    ("sourcing", "sourcing can not be updated"),
)


def filters_of(config: ConsumerConfig) -> list[str]:
    """The subjects that a consumer reads; empty = all."""
    if config.filter_subject:
        return [config.filter_subject]
    return list(config.filter_subjects)


def is_push(config: ConsumerConfig) -> bool:
    """Whether this is a push consumer: the server sends messages without a request."""
    return bool(config.deliver_subject)


def has_policy(config: ConsumerConfig) -> bool:
    """Whether requests belong to priority groups."""
    return config.priority_policy != "none"


def random_name() -> str:
    """A random name for a consumer."""
    return "".join(secrets.choice(LETTERS) for _ in range(limits.JS_CONSUMER_NAME))


# --- names in requests ---------------------------------------------------------------------------


def name_by_subject(
    config: ConsumerConfig, name: str, filter_tokens: str, *, durable: bool
) -> None:
    """Set the name of a consumer from its creation subject. ApiError: the configuration differs.

    `filter_tokens`: the filter that follows the name; `durable`: the old subject for durables.
    """
    if durable:
        if not config.durable_name:
            raise ApiError(errors.CONSUMER_DURABLE_NAME_NOT_SET)
        if config.durable_name != name:
            raise ApiError(errors.CONSUMER_DURABLE_NAME_MISMATCH)
        config.name = name
        return
    if config.durable_name and config.durable_name != name:
        raise ApiError(errors.CONSUMER_DURABLE_NAME_MISMATCH)
    config.name = name
    if not filter_tokens:
        return
    if config.filter_subjects:
        raise ApiError(errors.FILTERS_IN_SUBJECT)
    if config.filter_subject != filter_tokens:
        raise ApiError(errors.CREATE_FILTER_MISMATCH)


def check_unnamed(config: ConsumerConfig) -> None:
    """Refuse a durable consumer whose creation subject has no name. ApiError."""
    if config.durable_name:
        raise ApiError(errors.CONSUMER_EPHEMERAL_DURABLE_NAME)


def check_path(name: str) -> None:
    """Refuse a name with a slash or backslash. ApiError."""
    if "/" in name or "\\" in name:
        raise ApiError(errors.CONSUMER_NAME_PATH)


# --- defaults ------------------------------------------------------------------------------------


def set_defaults(
    config: ConsumerConfig,
    stream: StreamConfig,
    account: AccountLimits,
    server: JetStreamConfig,
    *,
    pedantic: bool,
) -> None:
    """Set the defaults of a configuration, except that of `set_threshold`, and correct values.
    ApiError: a pedantic request has a value that would be corrected."""

    def correct(problem: str) -> None:
        if pedantic:
            raise ApiError(errors.PEDANTIC, err=problem)

    if config.max_deliver < -1:
        correct("max_deliver must be set to -1")
    if config.max_deliver == 0 or config.max_deliver < -1:
        config.max_deliver = -1
    if config.max_waiting < 0:
        correct("max_waiting must not be negative")
        config.max_waiting = 0
    if not is_push(config) and config.max_waiting <= 0:
        config.max_waiting = limits.JS_MAX_WAITING
    if config.max_ack_pending < -1:
        correct("max_ack_pending must be set to -1")
        config.max_ack_pending = -1
    for field in (
        "max_batch",
        "max_expires",
        "max_bytes",
        "idle_heartbeat",
        "inactive_threshold",
        "priority_timeout",
    ):
        if getattr(config, field) < 0:
            correct(f"{field} must not be negative")
            setattr(config, field, 0)
    if config.backoff and config.backoff[0] >= 0:
        if config.ack_wait != config.backoff[0]:
            correct("first backoff value has to equal batch AckWait")
        config.ack_wait = config.backoff[0]
    _inherit(config, stream, account, server, correct)
    if config.priority_policy == "pinned_client" and not config.priority_timeout:
        config.priority_timeout = limits.JS_PINNED_TTL
    if config.ack_policy == "flow_control" and not pedantic:
        config.flow_control = True
        config.idle_heartbeat = FLOW_CONTROL_HEARTBEAT


def set_threshold(config: ConsumerConfig, known: ConsumerConfig | None = None) -> None:
    """Set the default of inactive_threshold, after which an unused ephemeral consumer is deleted.
    `known`: the consumer that is updated. An update without a durable name does not make a durable
    consumer ephemeral, and one with a durable name does not make an ephemeral consumer durable."""
    if known is None:
        ephemeral = not config.durable_name
    else:
        ephemeral = not known.durable_name and known.inactive_threshold != 0
    if ephemeral and config.inactive_threshold == 0:
        config.inactive_threshold = limits.JS_INACTIVE_THRESHOLD


def _inherit(
    config: ConsumerConfig,
    stream: StreamConfig,
    account: AccountLimits,
    server: JetStreamConfig,
    correct: Callable[[str], None],
) -> None:
    """Set values that the limits of the stream, the account and the server require."""
    own = stream.consumer_limits
    # The consumer of a mirror or source has no acks: with max_ack_pending it would be refused.
    is_reader = config.ack_policy == "none" and (config.direct or config.sourcing)
    if own.max_ack_pending > 0 and config.max_ack_pending == 0 and not is_reader:
        correct("max_ack_pending must be set if it's configured in stream limits")
        config.max_ack_pending = own.max_ack_pending
    if own.inactive_threshold > 0 and config.inactive_threshold == 0:
        correct("inactive_threshold must be set if it's configured in stream limits")
        config.inactive_threshold = own.inactive_threshold
    if config.ack_policy != "none":
        if config.ack_wait == 0 and config.ack_policy != "flow_control":
            config.ack_wait = limits.JS_ACK_WAIT
        if config.max_ack_pending == 0:
            bounds = (limits.JS_MAX_ACK_PENDING, server.max_ack_pending, account.max_ack_pending)
            config.max_ack_pending = min(most for most in bounds if most > 0)
    if not is_push(config) and config.max_batch == 0 and server.max_request_batch > 0:
        correct("max_request_batch must be set if it's JetStream limits are set")
        config.max_batch = server.max_request_batch


# --- refusals ------------------------------------------------------------------------------------


def check(
    config: ConsumerConfig, stream: StreamConfig, account: AccountLimits, server: JetStreamConfig
) -> None:
    """Check a configuration after its defaults are set. ApiError: the first problem."""
    replicas = max(1, stream.num_replicas)
    if config.num_replicas > replicas:
        raise ApiError(errors.CONSUMER_REPLICAS_EXCESS)
    if config.num_replicas < 0:
        raise ApiError(errors.REPLICAS_NEGATIVE)
    _check_acks(config)
    if len(config.description) > limits.JS_DESCRIPTION_MAX:
        raise ApiError(errors.CONSUMER_DESCRIPTION_TOO_LONG, max=limits.JS_DESCRIPTION_MAX)
    if is_push(config):
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
        if 0 < server.max_request_batch < config.max_batch:
            raise ApiError(errors.REQUEST_BATCH_EXCESS, limit=server.max_request_batch)
    own = stream.consumer_limits
    _check_limits(config, own, (server.max_ack_pending, account.max_ack_pending))
    if config.direct:
        if not is_push(config):
            raise ApiError(errors.DIRECT_REQUIRES_PUSH)
        if config.durable_name and not config.sourcing:
            raise ApiError(errors.DIRECT_REQUIRES_EPHEMERAL)
    _check_filters(config)
    _check_start(config)
    _check_rest(config)
    _check_priority(config)
    if config.ack_policy == "flow_control" and config.idle_heartbeat != FLOW_CONTROL_HEARTBEAT:
        raise ApiError(errors.STREAM_CONFIG, err="flow control ack policy heartbeat needs to be 1s")


def _check_acks(config: ConsumerConfig) -> None:
    if any(step < 0 for step in config.backoff):
        raise ApiError(errors.BACKOFF_NEGATIVE)
    if config.ack_wait < 0:
        raise ApiError(errors.ACK_WAIT_NEGATIVE)
    if config.ack_policy == "flow_control":
        for refused, row in (
            (not is_push(config), errors.ACK_FLOW_CONTROL_PUSH),
            (not config.flow_control, errors.ACK_FLOW_CONTROL),
            (config.max_ack_pending <= 0, errors.ACK_FLOW_CONTROL_PENDING),
            (config.ack_wait != 0, errors.ACK_FLOW_CONTROL_WAIT),
            (config.max_deliver > 0, errors.ACK_FLOW_CONTROL_DELIVER),
        ):
            if refused:
                raise ApiError(row)
    if config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise ApiError(errors.MAX_DELIVER_BACKOFF)


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    if has_wildcard(config.deliver_subject):
        raise ApiError(errors.DELIVER_WILDCARDS)
    if not is_subject(config.deliver_subject):
        raise ApiError(errors.DELIVER_SUBJECT_INVALID)
    if any(lies_within(config.deliver_subject, subject) for subject in stream.subjects):
        raise ApiError(errors.DELIVER_CYCLE)
    if config.max_waiting:
        raise ApiError(errors.PUSH_MAX_WAITING)
    if config.max_ack_pending > 0 and config.ack_policy == "none":
        raise ApiError(errors.MAX_ACK_PENDING_POLICY)
    if 0 < config.idle_heartbeat < limits.JS_HEARTBEAT_MIN:
        raise ApiError(errors.HEARTBEAT_TOO_SHORT)


def _check_pull(config: ConsumerConfig, stream: StreamConfig) -> None:
    if stream.retention == "workqueue" and config.ack_policy == "none":
        raise ApiError(errors.PULL_WORKQUEUE_ACK)
    if config.rate_limit_bps:
        raise ApiError(errors.PULL_RATE_LIMIT)
    if config.idle_heartbeat:
        raise ApiError(errors.HEARTBEAT_REQUIRES_PUSH)
    if config.flow_control:
        raise ApiError(errors.FLOW_CONTROL_REQUIRES_PUSH)
    if 0 < config.max_expires < limits.JS_REQUEST_EXPIRES_MIN:
        raise ApiError(errors.REQUEST_EXPIRES_TOO_SHORT)


def _check_limits(
    config: ConsumerConfig, own: StreamConsumerLimits, above: tuple[int, int]
) -> None:
    """`own`: limits of the stream; `above`: max_ack_pending of the server and of the account."""
    for most in (*above, own.max_ack_pending):
        if 0 < most < config.max_ack_pending:
            raise ApiError(errors.MAX_ACK_PENDING_EXCESS, limit=most)
    if 0 < own.inactive_threshold < config.inactive_threshold:
        raise ApiError(
            errors.INACTIVE_THRESHOLD_EXCESS, limit=duration_text(own.inactive_threshold)
        )


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise ApiError(errors.FILTER_DUPLICATE)
    filters = filters_of(config)
    check_count("filters of a consumer", len(filters), limits.JS_FILTERS_MAX)
    check_tokens("filters of a consumer", filters)
    for subject in filters:
        if not subject:
            raise ApiError(errors.FILTER_EMPTY)
        if not is_subject(subject):
            raise ApiError(errors.STREAM_CONFIG, err="invalid subject")
    if PatternSet(filters).has_subsets():
        raise ApiError(errors.FILTERS_OVERLAP)


def _check_start(config: ConsumerConfig) -> None:
    timed = config.opt_start_time != ""  # Go's zero time counts as a time
    policy = _DELIVER[config.deliver_policy]
    problem = ""
    if config.deliver_policy == "by_start_sequence":
        if not config.opt_start_seq:
            problem = "start sequence is not set"
        elif timed:
            problem = "start time is also set"
    elif config.deliver_policy == "by_start_time":
        if not timed:
            problem = "start time is not set"
        elif config.opt_start_seq:
            problem = "start start sequence is also set"  # the doubled word is the original's
    elif config.deliver_policy == "last_per_subject" and not filters_of(config):
        problem = "filter subject is not set"
    elif config.opt_start_seq:
        problem = "start sequence is also set"
    elif timed:
        problem = "start time is also set"
    if problem:
        raise ApiError(
            errors.DELIVER_POLICY,
            err=f"consumer delivery policy is {policy}, but optional {problem}",
        )


def _check_rest(config: ConsumerConfig) -> None:
    _check_sampling(config.sample_freq)
    if config.flow_control and not config.idle_heartbeat:
        raise ApiError(errors.FLOW_CONTROL_HEARTBEAT)
    if config.durable_name and config.name and config.durable_name != config.name:
        raise ApiError(errors.DURABLE_AND_NAME)
    size = sum(len(key.encode()) + len(text.encode()) for key, text in config.metadata.items())
    if size > limits.JS_METADATA_MAX:
        raise ApiError(errors.CONSUMER_METADATA_TOO_LARGE, limit="128KB")
    name = config.durable_name or config.name
    if len(name) > limits.JS_NAME_MAX:
        raise ApiError(errors.CONSUMER_NAME_TOO_LONG, max=limits.JS_NAME_MAX)
    if not NOT_IN_NAMES.isdisjoint(config.durable_name):
        raise ApiError(errors.DURABLE_NAME_INVALID)
    if not NOT_IN_NAMES.isdisjoint(config.name):
        raise ApiError(errors.STREAM_CONFIG, err=NAME_PROBLEM)


def _check_sampling(text: str) -> None:
    if not text:
        return
    try:
        negative = parse_int(text.removesuffix("%")) < 0
    except ValueError as problem:
        raise ApiError(errors.SAMPLING, err=str(problem)) from None
    if negative:
        raise ApiError(errors.SAMPLING, err="<nil>")  # Go's text of no error


def sample_percent(text: str) -> int:
    """The percentage of acks that are reported. The configuration was checked, perhaps by an older
    server with other rules."""
    digits = text.removesuffix("%").lstrip("+0")
    if digits.startswith("-") or not digits:
        return 0
    return 100 if len(digits) > len("100") else min(100, int(digits))


def _check_priority(config: ConsumerConfig) -> None:
    if not has_policy(config):
        if config.priority_groups:
            raise ApiError(errors.PRIORITY_GROUPS_WITHOUT_POLICY)
        if config.priority_timeout:
            raise ApiError(errors.PRIORITY_TIMEOUT_WITHOUT_POLICY)
        return
    if is_push(config):
        raise ApiError(errors.PRIORITY_WITH_PUSH)
    if not config.priority_groups:
        raise ApiError(errors.PRIORITY_POLICY_WITHOUT_GROUP)
    for group in config.priority_groups:
        if not group:
            raise ApiError(errors.PRIORITY_GROUP_EMPTY)
        check_group_name(group)


def check_group_name(group: str) -> None:
    """Refuse an invalid name of a priority group. ApiError."""
    if len(group) > limits.JS_PRIORITY_GROUP_MAX or not _GROUP_LETTERS.issuperset(group):
        raise ApiError(errors.PRIORITY_GROUP_NAME)


def check_workqueue(config: ConsumerConfig, others: Iterable[ConsumerConfig]) -> None:
    """Refuse a consumer that cannot read a work queue, or that would share messages with another
    one. ApiError."""
    if config.ack_policy not in {"explicit", "flow_control"}:
        raise ApiError(errors.WORKQUEUE_EXPLICIT_ACK)
    if config.deliver_policy != "all":
        raise ApiError(errors.WORKQUEUE_DELIVER_ALL)
    filters = filters_of(config)
    patterns = PatternSet(filters)
    for other in others:
        if not filters:
            raise ApiError(errors.WORKQUEUE_UNFILTERED)
        theirs = filters_of(other)
        if not theirs or any(map(patterns.overlaps, theirs)):
            raise ApiError(errors.WORKQUEUE_NOT_UNIQUE)


# --- updates -------------------------------------------------------------------------------------


def check_update(old: ConsumerConfig, new: ConsumerConfig) -> None:
    """Refuse changes that an existing consumer cannot make. ApiError."""
    for field, problem in _NOT_UPDATABLE:
        if getattr(old, field) != getattr(new, field):
            raise ApiError(errors.CONSUMER_CREATE, err=problem)
    if is_push(old) != is_push(new):
        problem = (
            "can not update push consumer to pull based"
            if is_push(old)
            else "can not update pull consumer to push based"
        )
        raise ApiError(errors.CONSUMER_CREATE, err=problem)
    if old.max_waiting != new.max_waiting:
        raise ApiError(errors.CONSUMER_CREATE, err="max waiting can not be updated")


def is_same(old: ConsumerConfig, new: ConsumerConfig) -> bool:
    """Whether two configurations are equal, apart from the pause and the server's metadata."""

    def stripped(config: ConsumerConfig) -> ConsumerConfig:
        return msgspec.structs.replace(
            config, metadata=metadata.users(config.metadata), pause_until=""
        )

    return stripped(old) == stripped(new)
