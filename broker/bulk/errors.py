"""All errors of the bulk API; a client receives them as `{"error": text, ...}`."""

from __future__ import annotations

from typing import Final

from broker.base.values import dataclass


@dataclass(frozen=True, slots=True)
class BulkError:
    """One error of the bulk API: its HTTP status and its text, with fields to fill in."""

    status: int
    text: str


class RefusedError(Exception):
    """A request ends with this error; `parts` fill in its text, `facts` are further fields."""

    def __init__(
        self, error: BulkError, facts: dict[str, object] | None = None, **parts: object
    ) -> None:
        self.status = error.status
        self.text = error.text.format(**parts)
        self.facts = facts or {}
        super().__init__(self.text)


def wrong(name: str, reason: str) -> RefusedError:
    """The error for an invalid argument."""
    return RefusedError(BULK_ARGUMENT, name=name, reason=reason)


BULK_NO_TOKEN: Final = BulkError(401, "a token is required: Authorization: Bearer TOKEN")
BULK_BAD_TOKEN: Final = BulkError(401, "unknown token")
BULK_FORBIDDEN: Final = BulkError(403, "{name} has no permission to {right} here")
BULK_OWNER: Final = BulkError(403, "the writer {writer} belongs to another token than {name}")
BULK_NO_PATH: Final = BulkError(404, "unknown path")
BULK_METHOD: Final = BulkError(405, "the method {method} is not allowed here")
BULK_ARGUMENT: Final = BulkError(400, "{name}: {reason}")
BULK_JSON: Final = BulkError(400, "invalid JSON body: {problem}")
BULK_BODY_BIG: Final = BulkError(413, "the body has more than {limit} bytes")
BULK_BODY_SLOW: Final = BulkError(408, "the body was not received within {seconds} s")
BULK_NO_TOPIC: Final = BulkError(404, "unknown topic {topic}")
BULK_QUARANTINED: Final = BulkError(503, "{topic} could not be opened and is quarantined")
BULK_TRIMMED: Final = BulkError(410, "records before {first} have been dropped")
BULK_INCARNATION: Final = BulkError(
    409, "the topic was recreated: its incarnation is {incarnation} now"
)
BULK_BEYOND: Final = BulkError(416, "records end before {next}")
BULK_BUSY: Final = BulkError(429, "too many ranges are under way")
BULK_READERS: Final = BulkError(429, "no more readers can be registered: the limit is {limit}")
BULK_NOT_KEPT: Final = BulkError(503, "not stored: {reason}")
BULK_UNREADABLE: Final = BulkError(503, "the log cannot be read: {reason}")
BULK_INTERNAL: Final = BulkError(500, "internal error; see the broker's log")

BULK_NUMBER: Final = "must be a whole number from {low} to {high}, got {text!r}"
BULK_MISSING: Final = "is missing"
BULK_HEX: Final = "must be 32 hexadecimal digits, got {text!r}"
BULK_TOO_MANY: Final = "more than {limit} names"
BULK_PATTERN: Final = "not a regular expression: {problem}"
BULK_ONE_OF: Final = "give subscribe or pattern, not both"
BULK_TIME: Final = "give one of time_ns and time_ms"
BULK_READER_NAMED: Final = "must have 1 to {limit} bytes and no control characters, got {text!r}"
BULK_TTL_SECONDS: Final = "must be from 1 to {high} seconds, got {got}"
BULK_SEQ: Final = "{topic}: must be from 0 to {high}, got {got}"

# --- staged blocks and commits --------------------------------------------------------------

BULK_BLOCK: Final = BulkError(400, "invalid block: {reason}")
BULK_NAME: Final = BulkError(400, "invalid name of {what}: {name!r}")
BULK_OFFSET: Final = BulkError(409, "this attempt has {have} bytes")
BULK_OTHER_BYTES: Final = BulkError(
    409,
    "this attempt has {have} bytes, and different ones at this offset: "
    "give each attempt its own name",
)
BULK_COMMITTING: Final = BulkError(409, "epoch {epoch} is being committed")
BULK_NOT_STAGED: Final = BulkError(409, "{count} attempts are not staged with the sizes given here")
BULK_SAME_PART: Final = BulkError(400, "topics: two attempts of part {part} of {topic}")
BULK_STAGED_FULL: Final = BulkError(507, "no more blocks can be staged: {reason}")
BULK_NO_SPACE: Final = BulkError(507, "the disk is full: {reason}")
BULK_NOT_STORED: Final = BulkError(503, "{topic} cannot be written: {reason}")
BULK_STREAM: Final = BulkError(409, "{topic} is a stream of JetStream: publish to it with a client")
BULK_TOPIC_FULL: Final = BulkError(507, "{topic} is full: {reason}")
BULK_NOT_SAVED: Final = BulkError(503, "the file cannot be written: {reason}")
BULK_BROKEN: Final = BulkError(
    500, "epoch {epoch} cannot be finished: its staged blocks are unreadable: {reason}"
)
BULK_STATE: Final = BulkError(500, "the state of this writer cannot be used: {reason}")
BULK_STOPPING: Final = BulkError(503, "the broker is stopping")

BULK_BLOCK_REASONS: Final = (
    "",
    "it is too short",
    "wrong magic bytes at its beginning",
    "its length differs from the length in its header",
    "wrong checksum",
    "record {number} is malformed",
    "record {number} has a subject that does not belong to the topic",
    "record {number} has invalid headers",
)
BULK_WRITER_BYTES: Final = "this writer has {limit} bytes staged"
BULK_ALL_BYTES: Final = "all writers together have {limit} bytes staged"
BULK_ALL_FILES: Final = "the limit of {limit} attempts is reached"
BULK_WRITERS: Final = "the limit of {limit} writers is reached"
BULK_ATTEMPTS: Final = "more than {limit} attempts"
BULK_ATTEMPT: Final = "an attempt is [part, name, bytes]; part and bytes must not be negative"
