"""All errors of the console's API; a client receives them as `{"code": ..., "message": ...}`."""

from __future__ import annotations

from typing import Final

from broker.base.values import dataclass


@dataclass(frozen=True, slots=True)
class ConsoleError:
    """One error: its HTTP status, its code and its text, with fields to fill in."""

    status: int
    code: str
    text: str


class RefusedError(Exception):
    """A request ends with this error; `parts` fill in its text."""

    def __init__(self, error: ConsoleError, **parts: object) -> None:
        self.status = error.status
        self.code = error.code
        self.text = error.text.format(**parts)
        super().__init__(self.text)

    def page(self) -> dict[str, str]:
        """The body of the response."""
        return {"code": self.code, "message": self.text}


ARGUMENT: Final = ConsoleError(400, "BAD_ARGUMENT", "{name}: {reason}")
BODY: Final = ConsoleError(400, "BAD_BODY", "invalid body: {reason}")
BODY_BIG: Final = ConsoleError(413, "TOO_BIG", "the body exceeds {limit} bytes")
BODY_SLOW: Final = ConsoleError(408, "TOO_SLOW", "the body did not arrive in {seconds} s")
BODY_TYPE: Final = ConsoleError(415, "BAD_TYPE", "expected Content-Type: application/json")
UNAUTHENTICATED: Final = ConsoleError(401, "UNAUTHENTICATED", "log in, or send a bearer token")
BAD_LOGIN: Final = ConsoleError(401, "BAD_LOGIN", "wrong user or password")
TOO_MANY: Final = ConsoleError(429, "TOO_MANY", "too many logins; try again in a minute")
FORBIDDEN: Final = ConsoleError(403, "FORBIDDEN", "this requires the role {role}")
READ_ONLY: Final = ConsoleError(403, "READ_ONLY", "the console is read-only ([console] read_only)")
FORGED: Final = ConsoleError(403, "FORGED", "expected the header Twinwire-Console: 1")
CONFIRM: Final = ConsoleError(409, "CONFIRM", "confirm must be {name}")
NOT_FOUND: Final = ConsoleError(404, "NOT_FOUND", "there is no such path")
METHOD: Final = ConsoleError(405, "METHOD", "the path does not have the method {method}")
NO_TOPIC: Final = ConsoleError(404, "NO_TOPIC", "there is no topic {topic!r}")
NO_CHANNEL: Final = ConsoleError(404, "NO_CHANNEL", "topic {topic!r} has no channel {channel!r}")
NO_READER: Final = ConsoleError(404, "NO_READER", "there is no reader {reader!r}")
NO_JOB: Final = ConsoleError(404, "NO_JOB", "no dead letters of {topic!r} are or were sent back")
NO_SERVICE: Final = ConsoleError(409, "OFF", "{what} is off")
NO_ACCOUNT: Final = ConsoleError(404, "NO_ACCOUNT", "there is no account {account!r}")
NO_STREAM: Final = ConsoleError(404, "NO_STREAM", "there is no stream {stream!r}")
NO_OBJECT: Final = ConsoleError(404, "NO_OBJECT", "there is no object {object!r} with content")
NOT_BUCKET: Final = ConsoleError(409, "NOT_BUCKET", "{stream!r} is no bucket that can be written")
NO_ANSWER: Final = ConsoleError(504, "NO_ANSWER", "JetStream did not answer; the change may come")
NOT_LIVE: Final = ConsoleError(400, "NOT_LIVE", "{path} cannot be followed")
FOREIGN: Final = ConsoleError(403, "FOREIGN", "{topic!r} belongs to {protocol}")
BUSY: Final = ConsoleError(409, "BUSY", "dead letters of {topic!r} are being sent back already")
STREAMS: Final = ConsoleError(503, "STREAMS", "too many pages follow the broker already")
NOT_SAVED: Final = ConsoleError(500, "NOT_SAVED", "cannot be stored: {reason}")
QUARANTINED: Final = ConsoleError(409, "QUARANTINED", "{topic!r} could not be opened: {reason}")
INTERNAL: Final = ConsoleError(500, "INTERNAL", "the request failed; the log has the reason")
STOPPING: Final = ConsoleError(503, "STOPPING", "the broker stops")

# Reasons in the texts above.
NAME: Final = "expected 1 to 64 letters, digits, . _ -"
UNKNOWN: Final = "unknown"
MISSING: Final = "is missing"
ONE_OF: Final = "expected either {first} or {second}"
MOMENT: Final = 'expected RFC 3339 ("2026-01-31T08:00:00Z") or seconds since 1970'
SUBJECT: Final = "invalid subject"
NUMBER: Final = "expected a number"
HEADER: Final = "invalid name or value of a header"
BASE64: Final = "invalid base64"
EMPTY: Final = "a message of a topic must not be empty"
BIG: Final = "exceeds {limit} bytes"
