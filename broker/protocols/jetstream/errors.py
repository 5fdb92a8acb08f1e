"""Errors that JetStream clients receive: number, HTTP-like code and text of nats-server 2.15.

A request is refused by `raise ApiError(errors.NAME)`; variable parts of a text (`{err}`) are
arguments by name. Errors that only a cluster sends are not here.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ErrorRow(NamedTuple):
    """One error: its number, its HTTP-like code, its text."""

    err_code: int
    code: int
    text: str


class ApiError(Exception):
    """A request is refused with this error."""

    counted = True  # by the error counter of the API

    def __init__(self, row: ErrorRow, **parts: object) -> None:
        text = row.text.format(**parts) if parts else row.text
        super().__init__(text)
        self.row = row
        self.err_code = row.err_code
        self.code = row.code
        self.text = text


ACCOUNT_RESOURCES_EXCEEDED: Final = ErrorRow(10002, 400, "resource limits exceeded for account")
BAD_REQUEST: Final = ErrorRow(10003, 400, "bad request")
CLUSTER_REQUIRED: Final = ErrorRow(10010, 503, "JetStream clustering support required")
CONSUMER_CREATE: Final = ErrorRow(10012, 500, "{err}")
CONSUMER_NAME_EXISTS: Final = ErrorRow(10013, 400, "consumer name already in use")
CONSUMER_NOT_FOUND: Final = ErrorRow(10014, 404, "consumer not found")
SNAPSHOT_DELIVER_SUBJECT: Final = ErrorRow(10015, 400, "deliver subject not valid")
CONSUMER_DURABLE_NAME_MISMATCH: Final = ErrorRow(
    10017, 400, "consumer name in subject does not match durable name in request"
)
CONSUMER_DURABLE_NAME_NOT_SET: Final = ErrorRow(
    10018, 400, "consumer expected to be durable but a durable name was not set"
)
CONSUMER_EPHEMERAL_DURABLE_IN_SUBJECT: Final = ErrorRow(
    10019, 400, "consumer expected to be ephemeral but detected a durable name set in subject"
)
CONSUMER_EPHEMERAL_DURABLE_NAME: Final = ErrorRow(
    10020, 400, "consumer expected to be ephemeral but a durable name was set in request"
)
EXTERNAL_API_OVERLAP: Final = ErrorRow(
    10021, 400, "stream external api prefix {prefix} must not overlap with {subject}"
)
EXTERNAL_DELIVER_OVERLAP: Final = ErrorRow(
    10022, 400, "stream external delivery prefix {prefix} overlaps with stream subject {subject}"
)
INSUFFICIENT_RESOURCES: Final = ErrorRow(10023, 503, "insufficient resources")
EXTERNAL_DELIVER_WILDCARDS: Final = ErrorRow(
    10024, 400, "stream external delivery prefix {prefix} must not contain wildcards"
)
INVALID_JSON: Final = ErrorRow(10025, 400, "invalid JSON: {err}")
CONSUMERS_MAX: Final = ErrorRow(10026, 400, "maximum consumers limit reached")
STREAMS_MAX: Final = ErrorRow(10027, 400, "maximum number of streams reached")
MEMORY_RESOURCES: Final = ErrorRow(10028, 500, "insufficient memory resources available")
MIRROR_SETUP: Final = ErrorRow(10029, 500, "{err}")
MIRROR_MSG_SIZE: Final = ErrorRow(10030, 400, "stream mirror must have max message size >= source")
MIRROR_WITH_SOURCES: Final = ErrorRow(
    10031, 400, "stream mirrors can not also contain other sources"
)
MIRROR_START_SEQ_AND_TIME: Final = ErrorRow(
    10032, 400, "stream mirrors can not have both start seq and start time configured"
)
MIRROR_WITH_FILTERS: Final = ErrorRow(
    10033, 400, "stream mirrors can not contain filtered subjects"
)
MIRROR_WITH_SUBJECTS: Final = ErrorRow(10034, 400, "stream mirrors can not contain subjects")
ACCOUNT_NOT_FOUND: Final = ErrorRow(10035, 503, "account not found")
MESSAGE_NOT_FOUND: Final = ErrorRow(10037, 404, "no message found")
NOT_EMPTY_REQUEST: Final = ErrorRow(10038, 400, "expected an empty request payload")
NOT_ENABLED_FOR_ACCOUNT: Final = ErrorRow(10039, 503, "JetStream not enabled for account")
RESTORE_SUBSCRIBE: Final = ErrorRow(
    10042, 500, "JetStream unable to subscribe to restore snapshot {subject}: {err}"
)
SEQUENCE_NOT_FOUND: Final = ErrorRow(10043, 400, "sequence {seq} not found")
SOURCE_SETUP: Final = ErrorRow(10045, 500, "{err}")
SOURCE_MSG_SIZE: Final = ErrorRow(10046, 400, "stream source must have max message size >= target")
STORAGE_RESOURCES: Final = ErrorRow(10047, 500, "insufficient storage resources available")
STREAM_CREATE: Final = ErrorRow(10049, 500, "{err}")
STREAM_DELETE: Final = ErrorRow(10050, 500, "{err}")
STREAM_GENERAL: Final = ErrorRow(10051, 500, "{err}")
STREAM_CONFIG: Final = ErrorRow(10052, 500, "{err}")
STREAM_LIMITS: Final = ErrorRow(10053, 500, "{err}")
MESSAGE_TOO_LARGE: Final = ErrorRow(10054, 400, "message size exceeds maximum allowed")
MIRROR_NOT_UPDATABLE: Final = ErrorRow(10055, 400, "stream mirror configuration can not be updated")
STREAM_MISMATCH: Final = ErrorRow(10056, 400, "stream name in subject does not match request")
MESSAGE_DELETE: Final = ErrorRow(10057, 500, "{err}")
STREAM_NAME_EXISTS: Final = ErrorRow(
    10058, 400, "stream name already in use with a different configuration"
)
STREAM_NOT_FOUND: Final = ErrorRow(10059, 404, "stream not found")
EXPECTED_STREAM: Final = ErrorRow(10060, 400, "expected stream does not match")
STREAM_RESTORE: Final = ErrorRow(10062, 500, "restore failed: {err}")
EXPECTED_STREAM_SEQUENCE: Final = ErrorRow(10063, 503, "expected stream sequence does not match")
STREAM_SNAPSHOT: Final = ErrorRow(10064, 500, "snapshot failed: {err}")
SUBJECTS_OVERLAP: Final = ErrorRow(10065, 400, "subjects overlap with an existing stream")
STREAM_UPDATE: Final = ErrorRow(10069, 500, "{err}")
WRONG_LAST_MSG_ID: Final = ErrorRow(10070, 400, "wrong last msg ID: {id}")
WRONG_LAST_SEQUENCE: Final = ErrorRow(10071, 400, "wrong last sequence: {seq}")
RESTORE_STORAGE: Final = ErrorRow(10072, 500, "JetStream unable to open temp storage for restore")
REPLICAS_NOT_SUPPORTED: Final = ErrorRow(
    10074, 500, "replicas > 1 not supported in non-clustered mode"
)
NOT_ENABLED: Final = ErrorRow(10076, 503, "JetStream not enabled")
STORE_FAILED: Final = ErrorRow(10077, 503, "{err}")
CONSUMER_CONFIG_REQUIRED: Final = ErrorRow(10078, 400, "consumer config required")
DELIVER_WILDCARDS: Final = ErrorRow(10079, 400, "consumer deliver subject has wildcards")
PUSH_MAX_WAITING: Final = ErrorRow(10080, 400, "consumer in push mode can not set max waiting")
DELIVER_CYCLE: Final = ErrorRow(10081, 400, "consumer deliver subject forms a cycle")
MAX_ACK_PENDING_POLICY: Final = ErrorRow(
    10082, 400, "consumer requires ack policy for max ack pending"
)
HEARTBEAT_TOO_SHORT: Final = ErrorRow(10083, 400, "consumer idle heartbeat needs to be >= 100ms")
PULL_WORKQUEUE_ACK: Final = ErrorRow(
    10084, 400, "consumer in pull mode requires explicit ack policy on workqueue stream"
)
PULL_DURABLE: Final = ErrorRow(10085, 400, "consumer in pull mode requires a durable name")
PULL_RATE_LIMIT: Final = ErrorRow(10086, 400, "consumer in pull mode can not have rate limit set")
MAX_WAITING_NEGATIVE: Final = ErrorRow(10087, 400, "consumer max waiting needs to be positive")
HEARTBEAT_REQUIRES_PUSH: Final = ErrorRow(
    10088, 400, "consumer idle heartbeat requires a push based consumer"
)
FLOW_CONTROL_REQUIRES_PUSH: Final = ErrorRow(
    10089, 400, "consumer flow control requires a push based consumer"
)
DIRECT_REQUIRES_PUSH: Final = ErrorRow(10090, 400, "consumer direct requires a push based consumer")
DIRECT_REQUIRES_EPHEMERAL: Final = ErrorRow(
    10091, 400, "consumer direct requires an ephemeral consumer"
)
CONSUMER_ON_MAPPED: Final = ErrorRow(10092, 400, "consumer direct on a mapped consumer")
FILTER_NOT_SUBSET: Final = ErrorRow(
    10093, 400, "consumer filter subject is not a valid subset of the interest subjects"
)
DELIVER_POLICY: Final = ErrorRow(10094, 400, "{err}")
SAMPLING: Final = ErrorRow(10095, 400, "failed to parse consumer sampling configuration: {err}")
STREAM_INVALID: Final = ErrorRow(10096, 500, "stream not valid")
HEADERS_TOO_LARGE: Final = ErrorRow(10097, 400, "header size exceeds maximum allowed of 64k")
WORKQUEUE_EXPLICIT_ACK: Final = ErrorRow(10098, 400, "workqueue stream requires explicit ack")
WORKQUEUE_UNFILTERED: Final = ErrorRow(
    10099, 400, "multiple non-filtered consumers not allowed on workqueue stream"
)
WORKQUEUE_NOT_UNIQUE: Final = ErrorRow(
    10100, 400, "filtered consumer not unique on workqueue stream"
)
WORKQUEUE_DELIVER_ALL: Final = ErrorRow(
    10101, 400, "consumer must be deliver all on workqueue stream"
)
CONSUMER_NAME_TOO_LONG: Final = ErrorRow(
    10102, 400, "consumer name is too long, maximum allowed is {max}"
)
DURABLE_NAME_INVALID: Final = ErrorRow(10103, 400, "durable name can not contain '.', '*', '>'")
CONSUMER_STORE: Final = ErrorRow(10104, 500, "error creating store for consumer: {err}")
CONSUMER_STILL_ACTIVE: Final = ErrorRow(10105, 400, "consumer already exists and is still active")
CONSUMER_REPLACEMENT: Final = ErrorRow(
    10106, 400, "consumer replacement durable config not the same"
)
CONSUMER_DESCRIPTION_TOO_LONG: Final = ErrorRow(
    10107, 400, "consumer description is too long, maximum allowed is {max}"
)
FLOW_CONTROL_HEARTBEAT: Final = ErrorRow(
    10108, 400, "consumer with flow control also needs heartbeats"
)
STREAM_SEALED: Final = ErrorRow(10109, 400, "invalid operation on sealed stream")
STREAM_PURGE: Final = ErrorRow(10110, 500, "{err}")
ROLLUP: Final = ErrorRow(10111, 500, "{err}")
DELIVER_SUBJECT_INVALID: Final = ErrorRow(10112, 400, "invalid push consumer deliver subject")
MAX_BYTES_REQUIRED: Final = ErrorRow(
    10113, 400, "account requires a stream config to have max bytes set"
)
REQUEST_BATCH_NEGATIVE: Final = ErrorRow(10114, 400, "consumer max request batch needs to be > 0")
REQUEST_EXPIRES_TOO_SHORT: Final = ErrorRow(
    10115, 400, "consumer max request expires needs to be >= 1ms"
)
MAX_DELIVER_BACKOFF: Final = ErrorRow(
    10116, 400, "max deliver is required to be > length of backoff values"
)
STREAM_INFO_TOO_LARGE: Final = ErrorRow(10117, 500, "subject details would exceed maximum allowed")
STREAM_OFFLINE: Final = ErrorRow(10118, 500, "stream is offline")
CONSUMER_OFFLINE: Final = ErrorRow(10119, 500, "consumer is offline")
NO_LIMITS: Final = ErrorRow(10120, 400, "no JetStream default or applicable tiered limit present")
MAX_ACK_PENDING_EXCESS: Final = ErrorRow(
    10121, 400, "consumer max ack pending exceeds system limit of {limit}"
)
MAX_STREAM_BYTES: Final = ErrorRow(
    10122, 400, "stream max bytes exceeds account limit max stream bytes"
)
REQUEST_BATCH_EXCESS: Final = ErrorRow(
    10125, 400, "consumer max request batch exceeds server limit of {limit}"
)
CONSUMER_REPLICAS_EXCESS: Final = ErrorRow(
    10126, 400, "consumer config replica count exceeds parent stream"
)
CONSUMER_NAME_PATH: Final = ErrorRow(10127, 400, "Consumer name can not contain path separators")
STREAM_NAME_PATH: Final = ErrorRow(10128, 400, "Stream name can not contain path separators")
RESTORE_NAME_EXISTS: Final = ErrorRow(10130, 400, "stream name already in use, cannot restore")
CREATE_FILTER_MISMATCH: Final = ErrorRow(
    10131, 400, "Consumer create request did not match filtered subject from create subject"
)
DURABLE_AND_NAME: Final = ErrorRow(
    10132, 400, "Consumer Durable and Name have to be equal if both are provided"
)
REPLICAS_NEGATIVE: Final = ErrorRow(10133, 400, "replicas count cannot be negative")
CONSUMER_REPLICAS_MATCH: Final = ErrorRow(
    10134, 400, "consumer config replicas must match interest retention stream's replicas"
)
CONSUMER_METADATA_TOO_LARGE: Final = ErrorRow(
    10135, 400, "consumer metadata exceeds maximum size of {limit}"
)
FILTER_DUPLICATE: Final = ErrorRow(
    10136, 400, "consumer cannot have both FilterSubject and FilterSubjects specified"
)
FILTERS_IN_SUBJECT: Final = ErrorRow(
    10137, 400, "consumer with multiple subject filters cannot use subject based API"
)
FILTERS_OVERLAP: Final = ErrorRow(10138, 400, "consumer subject filters cannot overlap")
FILTER_EMPTY: Final = ErrorRow(10139, 400, "consumer filter in FilterSubjects cannot be empty")
SOURCE_DUPLICATE: Final = ErrorRow(10140, 400, "duplicate source configuration detected")
SOURCE_NAME: Final = ErrorRow(10141, 400, "sourced stream name is invalid")
MIRROR_NAME: Final = ErrorRow(10142, 400, "mirrored stream name is invalid")
MIRROR_FIRST_SEQ: Final = ErrorRow(
    10143, 400, "stream mirrors can not have first sequence configured"
)
SOURCE_FILTER_AND_TRANSFORMS: Final = ErrorRow(
    10144, 400, "source with multiple subject transforms cannot also have a single subject filter"
)
SOURCE_TRANSFORM_SOURCE: Final = ErrorRow(10145, 400, "source transform source: {err}")
SOURCE_TRANSFORM: Final = ErrorRow(10146, 400, "source transform: {err}")
SOURCE_FILTERS_OVERLAP: Final = ErrorRow(10147, 400, "source filters can not overlap")
CONSUMER_EXISTS: Final = ErrorRow(10148, 400, "consumer already exists")
CONSUMER_DOES_NOT_EXIST: Final = ErrorRow(10149, 400, "consumer does not exist")
MIRROR_FILTER_AND_TRANSFORMS: Final = ErrorRow(
    10150, 400, "mirror with multiple subject transforms cannot also have a single subject filter"
)
MIRROR_TRANSFORM_SOURCE: Final = ErrorRow(10151, 400, "mirror transform source: {err}")
MIRROR_FILTERS_OVERLAP: Final = ErrorRow(10152, 400, "mirror subject filters can not overlap")
INACTIVE_THRESHOLD_EXCESS: Final = ErrorRow(
    10153, 400, "consumer inactive threshold exceeds system limit of {limit}"
)
MIRROR_TRANSFORM: Final = ErrorRow(10154, 400, "mirror transform: {err}")
STREAM_TRANSFORM_SOURCE: Final = ErrorRow(10155, 400, "stream transform source: {err}")
STREAM_TRANSFORM: Final = ErrorRow(10156, 400, "stream transform: {err}")
PEDANTIC: Final = ErrorRow(10157, 400, "pedantic mode: {err}")
DUPLICATE_IN_PROCESS: Final = ErrorRow(10158, 409, "duplicate message id is in process")
PRIORITY_POLICY_WITHOUT_GROUP: Final = ErrorRow(
    10159, 400, "Setting PriorityPolicy requires at least one PriorityGroup to be set"
)
PRIORITY_GROUP_UNKNOWN: Final = ErrorRow(
    10160, 400, "Provided priority group does not exist for this consumer"
)
PRIORITY_GROUP_EMPTY: Final = ErrorRow(10161, 400, "Group name cannot be an empty string")
PRIORITY_GROUP_NAME: Final = ErrorRow(
    10162,
    400,
    "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters",
)
WRONG_LAST_SEQUENCE_CONSTANT: Final = ErrorRow(10164, 400, "wrong last sequence")
TTL_INVALID: Final = ErrorRow(10165, 400, "invalid per-message TTL")
TTL_DISABLED: Final = ErrorRow(10166, 400, "per-message TTL is disabled")
TOO_MANY_REQUESTS: Final = ErrorRow(10167, 429, "too many requests")
COUNTER_DISABLED: Final = ErrorRow(10168, 400, "message counters is disabled")
COUNTER_MISSING: Final = ErrorRow(10169, 400, "message counter increment is missing")
COUNTER_PAYLOAD: Final = ErrorRow(10170, 400, "message counter has payload")
COUNTER_INVALID: Final = ErrorRow(10171, 400, "message counter increment is invalid")
COUNTER_BROKEN: Final = ErrorRow(10172, 400, "message counter is broken")
MIRROR_WITH_COUNTER: Final = ErrorRow(10173, 400, "stream mirrors can not also calculate counters")
ATOMIC_DISABLED: Final = ErrorRow(10174, 400, "atomic publish is disabled")
ATOMIC_SEQUENCE_MISSING: Final = ErrorRow(10175, 400, "atomic publish sequence is missing")
ATOMIC_INCOMPLETE: Final = ErrorRow(10176, 400, "atomic publish batch is incomplete")
ATOMIC_HEADER: Final = ErrorRow(10177, 400, "atomic publish unsupported header used: {header}")
PRIORITY_WITH_PUSH: Final = ErrorRow(
    10178, 400, "priority groups can not be used with push consumers"
)
ATOMIC_ID: Final = ErrorRow(10179, 400, "atomic publish batch ID is invalid")
ACK_POLICY_INVALID: Final = ErrorRow(10181, 400, "consumer ack policy invalid")
REPLAY_POLICY_INVALID: Final = ErrorRow(10182, 400, "consumer replay policy invalid")
ACK_WAIT_NEGATIVE: Final = ErrorRow(10183, 400, "consumer ack wait needs to be positive")
BACKOFF_NEGATIVE: Final = ErrorRow(10184, 400, "consumer backoff needs to be positive")
REQUIRED_API_LEVEL: Final = ErrorRow(10185, 412, "JetStream minimum api level required")
MIRROR_WITH_SCHEDULES: Final = ErrorRow(10186, 400, "stream mirrors can not also schedule messages")
SOURCE_WITH_SCHEDULES: Final = ErrorRow(10187, 400, "stream source can not also schedule messages")
SCHEDULES_DISABLED: Final = ErrorRow(10188, 400, "message schedules is disabled")
SCHEDULE_PATTERN: Final = ErrorRow(10189, 400, "message schedules pattern is invalid")
SCHEDULE_TARGET: Final = ErrorRow(10190, 400, "message schedules target is invalid")
SCHEDULE_TTL: Final = ErrorRow(10191, 400, "message schedules invalid per-message TTL")
SCHEDULE_ROLLUP: Final = ErrorRow(10192, 400, "message schedules invalid rollup")
EXPECTED_SUBJECT_WITHOUT_SEQUENCE: Final = ErrorRow(
    10193, 400, "missing sequence for expected last sequence per subject"
)
STREAM_OFFLINE_REASON: Final = ErrorRow(10194, 500, "stream is offline: {err}")
CONSUMER_OFFLINE_REASON: Final = ErrorRow(10195, 500, "consumer is offline: {err}")
PRIORITY_GROUPS_WITHOUT_POLICY: Final = ErrorRow(
    10196, 400, "consumer can not have priority groups when policy is none"
)
PRIORITY_TIMEOUT_WITHOUT_POLICY: Final = ErrorRow(
    10197, 400, "PinnedTTL cannot be set when PriorityPolicy is none"
)
MIRROR_WITH_ATOMIC: Final = ErrorRow(
    10198, 400, "stream mirrors can not also use atomic publishing"
)
ATOMIC_TOO_LARGE: Final = ErrorRow(10199, 400, "atomic publish batch is too large: {size}")
ATOMIC_COMMIT: Final = ErrorRow(10200, 400, "atomic publish batch commit is invalid")
ATOMIC_DUPLICATE: Final = ErrorRow(10201, 400, "atomic publish batch contains duplicate message id")
SCHEDULE_SOURCE: Final = ErrorRow(10203, 400, "message schedules source is invalid")
CONSUMER_RESET: Final = ErrorRow(10204, 400, "invalid reset: {err}")
BATCH_DISABLED: Final = ErrorRow(10205, 400, "batch publish is disabled")
BATCH_PATTERN: Final = ErrorRow(10206, 400, "batch publish pattern is invalid")
BATCH_ID: Final = ErrorRow(10207, 400, "batch publish ID is invalid")
BATCH_UNKNOWN: Final = ErrorRow(10208, 400, "batch publish ID unknown")
MIRROR_WITH_BATCH: Final = ErrorRow(10209, 400, "stream mirrors can not also use batch publishing")
ATOMIC_INFLIGHT: Final = ErrorRow(10210, 429, "atomic publish too many inflight")
BATCH_INFLIGHT: Final = ErrorRow(10211, 429, "batch publish too many inflight")
SCHEDULE_SCHEDULER: Final = ErrorRow(10212, 400, "message schedules invalid scheduler")
MIRROR_CONSUMER: Final = ErrorRow(10213, 400, "stream mirror consumer config is invalid")
MIRROR_CONSUMER_ACK: Final = ErrorRow(
    10214, 400, "stream mirror consumer requires flow control ack policy"
)
SOURCE_CONSUMER: Final = ErrorRow(10215, 400, "stream source consumer config is invalid")
SOURCE_CONSUMER_DUPLICATE: Final = ErrorRow(10216, 400, "duplicate stream source consumer detected")
SOURCE_CONSUMER_ACK: Final = ErrorRow(
    10217, 400, "stream source consumer requires flow control ack policy"
)
ACK_FLOW_CONTROL_PUSH: Final = ErrorRow(
    10218, 400, "flow control ack policy requires a push based consumer"
)
ACK_FLOW_CONTROL: Final = ErrorRow(10219, 400, "flow control ack policy requires flow control")
ACK_FLOW_CONTROL_PENDING: Final = ErrorRow(
    10220, 400, "flow control ack policy requires max ack pending"
)
ACK_FLOW_CONTROL_WAIT: Final = ErrorRow(
    10221, 400, "flow control ack policy requires unset ack wait"
)
ACK_FLOW_CONTROL_DELIVER: Final = ErrorRow(
    10222, 400, "flow control ack policy requires unset max deliver"
)
SCHEDULE_TIME_ZONE: Final = ErrorRow(10223, 400, "message schedules time zone is invalid")
STREAM_IDENTITY: Final = ErrorRow(10225, 400, "consumer's stream identity does not match: {msg}")
SOURCE_HEADER: Final = ErrorRow(10227, 400, "message stream source header is not allowed")
SOURCE_STALLED: Final = ErrorRow(10228, 500, "stream source consumer stalled on flow control")
