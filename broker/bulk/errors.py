"""Every error of the bulk door: what a client gets as `{"error": text, ...}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BulkError:
    """One error of the bulk door."""

    status: int
    text: str


BULK_NO_TOKEN: Final = BulkError(401, "a token is needed: Authorization: Bearer TOKEN")
BULK_BAD_TOKEN: Final = BulkError(401, "this token is not known")
BULK_FORBIDDEN: Final = BulkError(403, "{name} has no right to {right} here")
BULK_OWNER: Final = BulkError(403, "the writer {writer} belongs to another token than {name}")
BULK_NO_PATH: Final = BulkError(404, "there is nothing at this path")
BULK_METHOD: Final = BulkError(405, "this path does not know the method {method}")
BULK_ARGUMENT: Final = BulkError(400, "{name}: {reason}")
BULK_JSON: Final = BulkError(400, "the body must be JSON as the route asks for it: {problem}")
BULK_BODY_BIG: Final = BulkError(413, "the body has more than {limit} bytes")
BULK_BODY_SLOW: Final = BulkError(408, "the body did not come within {seconds} s")
BULK_NO_TOPIC: Final = BulkError(404, "there is no topic {topic}")
BULK_QUARANTINED: Final = BulkError(503, "{topic} could not be opened and is quarantined")
BULK_TRIMMED: Final = BulkError(410, "records before {first} are not there any more")
BULK_INCARNATION: Final = BulkError(409, "the topic was made anew: it is {incarnation} now")
BULK_BEYOND: Final = BulkError(416, "records end before {next}")
BULK_BUSY: Final = BulkError(429, "too many ranges are under way")
BULK_READERS: Final = BulkError(429, "there are {limit} readers, and no room for another")
BULK_NOT_KEPT: Final = BulkError(503, "not stored: {reason}")
BULK_UNREADABLE: Final = BulkError(503, "the disk does not read: {reason}")
BULK_INTERNAL: Final = BulkError(500, "this should not have happened; the broker's log says more")

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

BULK_BLOCK: Final = BulkError(400, "the body is no block: {reason}")
BULK_NAME: Final = BulkError(400, "{what} cannot be called {name!r}")
BULK_OFFSET: Final = BulkError(409, "this attempt has {have} bytes")
BULK_OTHER_BYTES: Final = BulkError(
    409, "this attempt has {have} bytes, and others at this offset: give each attempt its own name"
)
BULK_COMMITTING: Final = BulkError(409, "epoch {epoch} is being committed")
BULK_NOT_STAGED: Final = BulkError(409, "{count} attempts are not staged as they are named here")
BULK_SAME_PART: Final = BulkError(400, "topics: two attempts of part {part} of {topic}")
BULK_STAGED_FULL: Final = BulkError(507, "no more can be staged: {reason}")
BULK_NO_SPACE: Final = BulkError(507, "the disk is full: {reason}")
BULK_NOT_STORED: Final = BulkError(503, "{topic} cannot be written: {reason}")
BULK_TOPIC_FULL: Final = BulkError(507, "{topic} has no more room: {reason}")
BULK_NOT_SAVED: Final = BulkError(503, "the disk does not take it: {reason}")
BULK_BROKEN: Final = BulkError(
    500, "epoch {epoch} cannot be finished, its staged blocks do not read: {reason}"
)
BULK_STATE: Final = BulkError(500, "what is remembered of this writer does not read: {reason}")
BULK_STOPPING: Final = BulkError(503, "the broker is stopping")

BULK_BLOCK_REASONS: Final = (
    "",
    "it is too short",
    "it does not begin as one",
    "its length is not what it says",
    "its sum is wrong",
    "record {number} is malformed",
    "record {number} has a subject that does not belong to the topic",
    "record {number} has headers that are none",
)
BULK_WRITER_BYTES: Final = "this writer has {limit} bytes staged"
BULK_ALL_BYTES: Final = "all writers together have {limit} bytes staged"
BULK_ALL_FILES: Final = "there are {limit} attempts"
BULK_WRITERS: Final = "there are {limit} writers"
BULK_ATTEMPTS: Final = "more than {limit} attempts"
BULK_ATTEMPT: Final = "an attempt is [part, name, bytes], none of them below 0"
