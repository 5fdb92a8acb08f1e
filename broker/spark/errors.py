"""Exceptions and error texts of the Spark source and sink. `{name}` is filled in."""

from __future__ import annotations

from typing import Final


class OptionError(ValueError):
    """An invalid option, schema or starting offset."""


class DataLossError(RuntimeError):
    """Records that the query should read were removed or are damaged, and `failOnDataLoss` is
    true."""


class RowError(ValueError):
    """A row that cannot be written."""


class UncommittedError(RuntimeError):
    """A write that cannot be committed."""


class BrokerDownError(ConnectionError):
    """A broker could not be reached, even with retries."""


class WrongDoorError(BrokerDownError):
    """No broker could be reached, and a retry cannot help."""


NO_ARROW: Final = (
    "Spark's workers run {python}, which has no PyArrow:"
    " set PYSPARK_PYTHON to the Python of an environment with PyArrow"
)

# --- options ---------------------------------------------------------------------------------

UNKNOWN: Final = "unknown option {name!r}{hint}"
MISSING: Final = "option {name!r} is required"
BAD_VALUE: Final = "option {name!r}: {value!r} is not {wanted}"
CONFLICT: Final = "options {first!r} and {second!r} exclude each other"
ONE_OF: Final = "one of the options {names} is required, and only one"
ONLY_BATCH: Final = "option {name!r} is for batch queries; a stream has no end"
EPOCH_OF_STREAM: Final = "option 'epoch' is for batch writes; a stream counts its own"
NEEDS: Final = "option {name!r} needs option {other!r}"
ENDLESS: Final = "option {name!r}: {value!r} would read nothing in a batch query"
NOT_SUBSCRIBED: Final = "option {name!r} names {topic!r} ({partition}), which is not subscribed"

# --- schema ----------------------------------------------------------------------------------

UNKNOWN_COLUMN: Final = "unknown column {name!r}; the columns are {known}"
COLUMN_TYPE: Final = "column {name!r} is of type {wanted}, not {given}"

COLUMN_MISSING: Final = "column {name!r} is required"
KEY_NEEDS_HEADER: Final = (
    "column 'key' needs option 'keyHeader': the name of the header for the keys"
)
TOPIC_MISSING: Final = "a column 'topic' or the option 'topic' is required"
ID_MISSING: Final = "delivery 'dedupe' needs a column 'messageId'"
ID_NULL: Final = "a row has no messageId, which delivery 'dedupe' needs"
OVERWRITE: Final = "a topic cannot be overwritten: use mode 'append'"
NO_QUERY: Final = "Spark does not report the query and batch of this task"
UNCOMMITTED: Final = "not all tasks have written their rows; nothing was published"
OLD_CHECKPOINT: Final = (
    "batch {epoch} of this query was published to {topic!r} before, and so was batch {last}:"
    " the checkpoint is an old copy. Rows of such batches would be dropped."
    " Continue with the newest checkpoint; or set option 'writerId' to a new name,"
    " which publishes again what was published after the copy was made"
)

# --- brokers and logs ------------------------------------------------------------------------

DOWN: Final = "brokers not reached: {servers}"
SAME_PARTITION: Final = (
    "brokers {first} and {second} are both configured as partition {partition}:"
    " give each its own `partition` in section [bulk] of its configuration"
)
NO_TOPIC: Final = "no broker has a topic {topic!r}, or it may not be read with this token"
NO_MATCH: Final = "no topic matches {pattern}, or none may be read with this token"
UNKNOWN_TOPIC: Final = "topic {topic!r} is not on any of the brokers"
BAD_OFFSET: Final = "invalid offset: {text}"
NO_RECORD: Final = "topic {topic!r} ({partition}) has no record at or after {time_ms} ms"

LOST: Final = "{text}. Set failOnDataLoss to false to continue without these records"
TRIMMED: Final = (
    "topic {topic!r} ({partition}): records {start} to {end} were removed before they were read"
)
UNREADABLE: Final = "topic {topic!r} ({partition}): records {start} to {end} are {reason}"
STUCK: Final = "topic {topic!r} ({partition}): the broker no longer has a record at {start}"
VANISHED: Final = "topic {topic!r} ({partition}) was deleted; it was read up to {start}"
RECREATED: Final = (
    "topic {topic!r} ({partition}) was deleted and recreated; the old one was read up to {start}"
)
SHORTER: Final = (
    "topic {topic!r} ({partition}) was truncated: it was read up to {start} and now ends at {next}"
)
