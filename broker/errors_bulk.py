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
BULK_NO_PATH: Final = BulkError(404, "there is nothing at this path")
BULK_METHOD: Final = BulkError(405, "this path does not know the method {method}")
BULK_ARGUMENT: Final = BulkError(400, "{name}: {reason}")
BULK_JSON: Final = BulkError(400, "the body must be JSON as the route asks for it: {problem}")
BULK_BODY_BIG: Final = BulkError(413, "the body has more than {limit} bytes")
BULK_BODY_SLOW: Final = BulkError(408, "the body did not come within {seconds} s")
BULK_NO_TOPIC: Final = BulkError(404, "there is no topic {topic}")
BULK_TRIMMED: Final = BulkError(410, "records before {first} are not there any more")
BULK_INCARNATION: Final = BulkError(409, "the topic was made anew: it is {incarnation} now")
BULK_BEYOND: Final = BulkError(416, "records end before {next}")
BULK_BUSY: Final = BulkError(429, "too many ranges are under way")
BULK_UNREADABLE: Final = BulkError(503, "the disk does not read: {reason}")
BULK_INTERNAL: Final = BulkError(500, "this should not have happened; the broker's log says more")

BULK_NUMBER: Final = "must be a whole number from {low} to {high}, got {text!r}"
BULK_MISSING: Final = "is missing"
BULK_HEX: Final = "must be 32 hexadecimal digits, got {text!r}"
BULK_TOO_MANY: Final = "more than {limit} names"
BULK_PATTERN: Final = "not a regular expression: {problem}"
BULK_ONE_OF: Final = "give subscribe or pattern, not both"
BULK_TIME: Final = "give one of time_ns and time_ms"
