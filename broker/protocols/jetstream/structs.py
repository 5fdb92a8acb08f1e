"""Configurations, states and answers of JetStream, in the JSON of nats-server.

Fields with their default value are omitted, as by Go's omitempty; `always` marks fields that are
never omitted. Durations are nanoseconds. Times are text as Go writes it (see `time_text`); "" is no
time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from broker.base.patterns import lazy_pattern
from broker.base.units import INT64_MAX, INT64_MIN, SECOND

ZERO_TIME: Final = "0001-01-01T00:00:00Z"

# Go's types. api/decode checks the upper limits of uint64 and int32, because msgspec compares with
# signed 64 bit numbers, and files may have values that requests may not have.
Int = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX, extra={"go": "int64"})]
SmallInt = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX, extra={"go": "int"})]
Int32 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX, extra={"go": "int32"})]
Duration = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX, extra={"go": "time.Duration"})]
Uint = Annotated[int, Meta(ge=0, extra={"go": "uint64"})]
Time = Annotated[str, Meta(min_length=1, extra={"go": "time.Time"})]  # "" only as a default

Retention = Literal["limits", "interest", "workqueue"]
Discard = Annotated[Literal["old", "new"], Meta(extra={"go": "server.DiscardPolicy"})]
Storage = Literal["file", "memory"]
Compression = Annotated[Literal["none", "s2"], Meta(extra={"go": "server.StoreCompression"})]
PersistMode = Literal["", "default", "async"]
DeliverPolicy = Literal[
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject", "undefined"
]
AckPolicy = Literal["none", "all", "explicit", "flow_control"]
ReplayPolicy = Literal["instant", "original"]
PriorityPolicy = Annotated[
    Literal["none", "overflow", "pinned_client", "prioritized"],
    Meta(extra={"go": "server.PriorityPolicy"}),
]
Action = Annotated[Literal["", "create", "update"], Meta(extra={"go": "server.ConsumerAction"})]


def always(value: Any) -> Any:
    """A field with this default, which is never omitted."""
    return msgspec.field(default_factory=lambda: value)


class GoStruct(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A struct whose fields are written in their order, without defaults."""


# --- streams -------------------------------------------------------------------------------------


class Placement(GoStruct):
    """The placement of a stream in a cluster; this server only returns it in answers."""

    cluster: str = ""
    tags: list[str] = []
    preferred: str = ""


class SubjectTransform(GoStruct):
    """A mapping of subjects."""

    src: str = always("")
    dest: str = always("")


class RePublish(GoStruct):
    """A subject on which stored messages are published again."""

    src: str = ""
    dest: str = always("")
    headers_only: bool = False


class ExternalStream(GoStruct):
    """The subject prefixes of the API of another account or domain."""

    api: str = always("")
    deliver: str = always("")


class StreamConsumerSource(GoStruct):
    """A durable consumer of the origin that a mirror or source reads."""

    name: str = ""
    deliver_subject: str = ""


class StreamSource(GoStruct):
    """The origin of a mirror or a source."""

    name: str = always("")
    opt_start_seq: Uint = 0
    opt_start_time: Time = ""
    filter_subject: str = ""
    subject_transforms: list[SubjectTransform] = []
    external: ExternalStream | None = None
    consumer: StreamConsumerSource | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the API of another account or domain is used."""
        return self.external is not None and self.external.api != ""


def deliver_subject(source: StreamSource, token: str, mirrors: bool) -> str:
    """The deliver subject of the consumer of an origin in another account or on another server."""
    external = source.external
    prefix = (external.deliver if external is not None else "") or "$JS"
    return f"{prefix}.{'M' if mirrors else 'S'}.{token}"


class StreamConsumerLimits(GoStruct):
    """Limits and defaults of a stream's consumers."""

    inactive_threshold: Duration = 0
    max_ack_pending: SmallInt = 0


class StreamConfig(GoStruct):
    """The configuration of a stream."""

    name: str = always("")
    description: str = ""
    subjects: list[str] = []
    retention: Retention = always("limits")
    max_consumers: SmallInt = always(0)
    max_msgs: Int = always(0)
    max_bytes: Int = always(0)
    max_age: Duration = always(0)
    max_msgs_per_subject: Int = always(0)
    max_msg_size: Int32 = always(0)
    discard: Discard = always("old")
    storage: Storage = always("file")
    num_replicas: SmallInt = always(0)
    no_ack: bool = False
    duplicate_window: Duration = 0
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: list[StreamSource] = []
    compression: Compression = always("none")
    first_seq: Uint = 0
    subject_transform: SubjectTransform | None = None
    republish: RePublish | None = None
    allow_direct: bool = always(False)
    mirror_direct: bool = always(False)
    discard_new_per_subject: bool = False
    sealed: bool = always(False)
    deny_delete: bool = always(False)
    deny_purge: bool = always(False)
    allow_rollup_hdrs: bool = always(False)
    consumer_limits: StreamConsumerLimits = msgspec.field(default_factory=StreamConsumerLimits)
    allow_msg_ttl: bool = always(False)
    subject_delete_marker_ttl: Duration = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = ""
    allow_batched: bool = False
    metadata: dict[str, str] = {}


class StreamConfigRequest(StreamConfig):
    """STREAM.CREATE and STREAM.UPDATE."""

    pedantic: bool = False


class LostStreamData(GoStruct):
    """Messages that were lost by damage."""

    msgs: list[Uint] | None = always(None)
    bytes: Uint = always(0)


class StreamState(GoStruct):
    """The state of a stream."""

    messages: Uint = always(0)
    bytes: Uint = always(0)
    first_seq: Uint = always(0)
    first_ts: Time = always(ZERO_TIME)
    last_seq: Uint = always(0)
    last_ts: Time = always(ZERO_TIME)
    num_subjects: SmallInt = 0
    subjects: dict[str, Uint] | Raw = {}
    num_deleted: SmallInt = 0
    deleted: list[Uint] = []
    lost: LostStreamData | None = None
    consumer_count: SmallInt = always(0)


class ClusterInfo(GoStruct):
    """The server that serves a stream or consumer."""

    leader: str = ""


class ApiErrorBody(GoStruct):
    """An error inside an answer."""

    code: int = always(0)
    err_code: int = 0
    description: str = ""


class StreamSourceInfo(GoStruct):
    """The progress of a mirror or source."""

    name: str = always("")
    external: ExternalStream | None = None
    lag: int = always(0)
    seq: int = 0
    active: int = always(-1)  # ns since the last contact; -1 = never
    error: ApiErrorBody | None = None
    filter_subject: str = ""
    subject_transforms: list[SubjectTransform] = []


class StreamInfo(GoStruct):
    """A stream in an answer."""

    config: StreamConfig = msgspec.field(default_factory=StreamConfig)
    created: str = always(ZERO_TIME)
    state: StreamState = msgspec.field(default_factory=StreamState)
    domain: str = ""
    cluster: ClusterInfo | None = None
    mirror: StreamSourceInfo | None = None
    sources: list[StreamSourceInfo] = []
    ts: str = ZERO_TIME


# --- consumers -----------------------------------------------------------------------------------


class ConsumerConfig(GoStruct):
    """The configuration of a consumer."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = always("all")
    opt_start_seq: Uint = 0
    opt_start_time: Time = ""
    ack_policy: AckPolicy = always("none")
    ack_wait: Duration = 0
    max_deliver: SmallInt = 0
    backoff: list[Duration] = []
    filter_subject: str = ""
    filter_subjects: list[str] = []
    replay_policy: ReplayPolicy = always("instant")
    rate_limit_bps: Uint = 0
    sample_freq: str = ""
    max_waiting: SmallInt = 0
    max_ack_pending: SmallInt = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: SmallInt = 0
    max_expires: Duration = 0
    max_bytes: SmallInt = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: Duration = 0
    inactive_threshold: Duration = 0
    num_replicas: SmallInt = always(0)
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: dict[str, str] = {}
    pause_until: Time = ""
    priority_groups: list[str] = []
    priority_policy: PriorityPolicy = "none"
    priority_timeout: Duration = 0


class CreateConsumerRequest(GoStruct):
    """CONSUMER.CREATE and CONSUMER.DURABLE.CREATE."""

    stream_name: str = always("")
    config: ConsumerConfig = msgspec.field(default_factory=ConsumerConfig)
    action: Action = always("")
    pedantic: bool = False


class SequenceInfo(GoStruct):
    """A position of a consumer."""

    consumer_seq: int = always(0)
    stream_seq: int = always(0)
    last_active: str = ""


class PriorityGroupState(GoStruct):
    """A priority group and its pinned client."""

    group: str = always("")
    pinned_client_id: str = ""
    pinned_ts: str = always(ZERO_TIME)


class ConsumerInfo(GoStruct):
    """A consumer in an answer."""

    stream_name: str = always("")
    name: str = always("")
    created: str = always(ZERO_TIME)
    config: ConsumerConfig | None = None
    delivered: SequenceInfo = msgspec.field(default_factory=SequenceInfo)
    ack_floor: SequenceInfo = msgspec.field(default_factory=SequenceInfo)
    num_ack_pending: int = always(0)
    num_redelivered: int = always(0)
    num_waiting: int = always(0)
    num_pending: int = always(0)
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    paused: bool = False
    pause_remaining: int = 0
    ts: str = ZERO_TIME
    priority_groups: list[PriorityGroupState] = []


class PullRequest(GoStruct):
    """CONSUMER.MSG.NEXT."""

    expires: Duration = 0
    batch: SmallInt = 0
    max_bytes: SmallInt = 0
    no_wait: bool = False
    idle_heartbeat: Duration = 0
    group: str = ""
    id: str = ""
    min_pending: Int = 0
    min_ack_pending: Int = 0
    priority: SmallInt = 0


class PauseRequest(GoStruct):
    """CONSUMER.PAUSE."""

    pause_until: Time = ""


class UnpinRequest(GoStruct):
    """CONSUMER.UNPIN."""

    group: str = ""


class ResetRequest(GoStruct):
    """CONSUMER.RESET."""

    seq: Uint = 0


class ResetAnswer(GoStruct):
    """The end of the answer to CONSUMER.RESET."""

    reset_seq: int = always(0)


class PauseAnswer(GoStruct):
    """The answer to CONSUMER.PAUSE."""

    paused: bool = always(False)
    pause_until: str = always(ZERO_TIME)
    pause_remaining: int = 0


# --- requests and answers about streams -----------------------------------------------------------


class StreamInfoRequest(GoStruct):
    """STREAM.INFO."""

    offset: SmallInt = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class StreamNamesRequest(GoStruct):
    """STREAM.NAMES."""

    offset: SmallInt = 0
    subject: str = ""


class StreamListRequest(StreamNamesRequest):
    """STREAM.LIST."""


class PageRequest(GoStruct):
    """CONSUMER.NAMES and CONSUMER.LIST."""

    offset: SmallInt = 0


class PurgeRequest(GoStruct):
    """STREAM.PURGE."""

    seq: Uint = 0
    filter: str = ""
    keep: Uint = 0


class MsgGetRequest(GoStruct):
    """STREAM.MSG.GET and DIRECT.GET."""

    seq: Uint = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: SmallInt = 0
    max_bytes: SmallInt = 0
    start_time: Time = ""
    multi_last: list[str] = []
    up_to_seq: Uint = 0
    up_to_time: Time = ""
    no_hdr: bool = False


class MsgDeleteRequest(GoStruct):
    """STREAM.MSG.DELETE."""

    seq: Uint = always(0)
    no_erase: bool = False


class StoredMsg(GoStruct):
    """A stored message; headers and body are written in base64."""

    subject: str = always("")
    seq: int = always(0)
    hdrs: bytes = b""
    data: bytes = b""
    time: str = always(ZERO_TIME)


class MsgGetAnswer(GoStruct):
    """The answer to STREAM.MSG.GET."""

    message: StoredMsg = msgspec.field(default_factory=StoredMsg)


class Page(GoStruct):
    """The first fields of answers with pages."""

    total: int = always(0)
    offset: int = always(0)
    limit: int = always(0)


class StreamNamesAnswer(Page):
    """The answer to STREAM.NAMES; null without streams."""

    streams: list[str] | None = always(None)


class StreamListAnswer(Page):
    """The answer to STREAM.LIST."""

    streams: list[StreamInfo] = always([])
    missing: list[str] = []
    offline: dict[str, str] = {}


class ConsumerNamesAnswer(Page):
    """The answer to CONSUMER.NAMES."""

    consumers: list[str] = always([])


class ConsumerListAnswer(Page):
    """The answer to CONSUMER.LIST."""

    consumers: list[ConsumerInfo] = always([])
    missing: list[str] = []
    offline: dict[str, str] = {}


class Success(GoStruct):
    """The answer to requests that return nothing."""

    success: bool = False


class Initiated(GoStruct):
    """The answer to ACCOUNT.PURGE."""

    initiated: bool = False


class PurgeAnswer(GoStruct):
    """The answer to STREAM.PURGE."""

    success: bool = False
    purged: int = always(0)


class SnapshotRequest(GoStruct):
    """STREAM.SNAPSHOT."""

    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: SmallInt = 0
    window_size: SmallInt = 0
    jsck: bool = False  # verify the files first: each message is verified here when it is read


class SnapshotAnswer(GoStruct):
    """The answer to STREAM.SNAPSHOT."""

    config: StreamConfig | None = None
    state: StreamState | None = None


class RestoreRequest(GoStruct):
    """STREAM.RESTORE."""

    config: StreamConfig = msgspec.field(default_factory=StreamConfig)
    state: StreamState = msgspec.field(default_factory=StreamState)


class RestoreAnswer(GoStruct):
    """The answer to STREAM.RESTORE."""

    deliver_subject: str = always("")


class Created(GoStruct):
    """The end of the answer to STREAM.CREATE."""

    did_create: bool = False


# --- accounts ------------------------------------------------------------------------------------


class AccountLimits(GoStruct):
    """The limits of an account or of a tier; -1 = none."""

    max_memory: int = always(-1)
    max_storage: int = always(-1)
    max_streams: int = always(-1)
    max_consumers: int = always(-1)
    max_ack_pending: int = always(-1)
    memory_max_stream_bytes: int = always(-1)
    storage_max_stream_bytes: int = always(-1)
    max_bytes_required: bool = always(False)


class ApiStats(GoStruct):
    """Requests answered, and those answered with errors."""

    level: int = always(0)
    total: int = always(0)
    errors: int = always(0)
    inflight: int = 0


class Tier(GoStruct):
    """Usage and limits of one tier."""

    memory: int = always(0)
    storage: int = always(0)
    reserved_memory: int = always(0)
    reserved_storage: int = always(0)
    streams: int = always(0)
    consumers: int = always(0)
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)


class AccountInfo(Tier):
    """Usage and limits of an account."""

    domain: str = ""
    api: ApiStats = msgspec.field(default_factory=ApiStats)
    tiers: dict[str, Tier] = {}


# --- text ----------------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_encode_as_is: Final = msgspec.json.Encoder().encode
_RFC3339: Final = lazy_pattern(
    r"(\d{4}-\d\d-\d\d)T((?:[01]?\d|2[0-3]):\d\d:\d\d)(?:[.,](\d+))?"
    r"(?:(Z)|([+-])([01]\d|2[0-4]):([0-5]\d|60))"
)
_TYPE: Final = b'{"type":"io.nats.jetstream.api.v1.%b_response"'


def encode(value: object) -> bytes:
    """JSON as Go writes it: keys of maps are sorted; <, > and & are escaped."""
    return _escaped(_encode(value))


def encode_event(fields: dict[str, Any]) -> bytes:
    """The same for an event, whose fields are in the order of the dict."""
    return _escaped(_encode_as_is(fields))


def _escaped(text: bytes) -> bytes:
    if b">" in text or b"<" in text or b"&" in text:
        text = text.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
    return text


def copied(config: StreamConfig) -> StreamConfig:
    """A deep copy of a configuration."""
    return msgspec.convert(msgspec.to_builtins(config), StreamConfig)


def answer(kind: str, *parts: object, error: object | None = None) -> bytes:
    """An answer: its type for this kind ("stream_create"), an ApiError if any, then the parts."""
    text = [_TYPE % kind.encode()]
    if error is not None:
        body = ApiErrorBody(
            code=error.code,  # type: ignore[attr-defined]
            err_code=error.err_code,  # type: ignore[attr-defined]
            description=error.text,  # type: ignore[attr-defined]
        )
        text.append(b',"error":' + encode(body))
    for part in parts:
        fields = encode(part)[1:-1]
        if fields:
            text.append(b"," + fields)
    text.append(b"}")
    return b"".join(text)


def time_text(wall_ns: int) -> str:
    """An RFC 3339 text in UTC with up to nine digits of the fraction; 0 = Go's zero time."""
    if wall_ns == 0:
        return ZERO_TIME
    seconds, fraction = divmod(wall_ns, SECOND)
    at = time.gmtime(seconds)
    text = f"{at.tm_year:04}" + time.strftime("-%m-%dT%H:%M:%S", at)  # %Y has no leading zeros
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def time_ns(text: str) -> int:
    """The wall clock time of an RFC 3339 text, with all that Go accepts of it; 0 for "" and Go's
    zero time. ValueError."""
    if text in ("", ZERO_TIME):
        return 0
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(text)
    day, clock, digits, _, sign, hours, minutes = found.groups()
    moment = datetime.fromisoformat(f"{day}T{clock:0>8}").replace(tzinfo=UTC)
    seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    if sign:
        offset = int(hours) * 3600 + int(minutes) * 60
        seconds -= offset if sign == "+" else -offset
    return seconds * SECOND + int((digits or "").ljust(9, "0")[:9])


def moment_ns(text: str) -> int:
    """The same, limited to the range of 64 bits: the years 1677 to 2262. ValueError."""
    return min(max(time_ns(text), INT64_MIN), INT64_MAX)


def now_text() -> str:
    """The current time, for answers."""
    return time_text(time.time_ns())
