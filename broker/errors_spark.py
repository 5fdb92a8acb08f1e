"""What the Spark source and sink tell their user when they end a query. `{name}` is filled in."""

from __future__ import annotations

from typing import Final


class OptionError(ValueError):
    """An option, a schema or a starting offset that cannot be meant."""


class DataLossError(RuntimeError):
    """Records that the query was to read are gone or do not read, and `failOnDataLoss` is true."""


class BrokerDownError(ConnectionError):
    """A broker was not reached within the retries."""


# --- options ---------------------------------------------------------------------------------

UNKNOWN: Final = "unknown option {name!r}{hint}"
MISSING: Final = "option {name!r} is required"
BAD_VALUE: Final = "option {name!r}: {value!r} is not {wanted}"
CONFLICT: Final = "options {first!r} and {second!r} exclude each other"
ONE_OF: Final = "one of the options {names} is required, and only one"
ONLY_BATCH: Final = "option {name!r} is for batch queries; a stream has no end"
NEEDS: Final = "option {name!r} needs option {other!r}"
ENDLESS: Final = "option {name!r}: {value!r} would read nothing in a batch query"
NOT_SUBSCRIBED: Final = "option {name!r} names {topic!r} ({partition}), which is not subscribed"

# --- schema ----------------------------------------------------------------------------------

UNKNOWN_COLUMN: Final = "no column {name!r}; there are {known}"
COLUMN_TYPE: Final = "column {name!r} is of type {wanted}, not {given}"

# --- brokers and logs ------------------------------------------------------------------------

DOWN: Final = "brokers not reached: {servers}"
SAME_PARTITION: Final = (
    "brokers {first} and {second} both call themselves partition {partition}:"
    " give each its own `partition` in section [bulk] of its configuration"
)
UNKNOWN_TOPIC: Final = "topic {topic!r} is not on any of the brokers"
BAD_OFFSET: Final = "not an offset of this source: {text}"
NO_RECORD: Final = "topic {topic!r} ({partition}) has no record at or after {time_ms} ms"

LOST: Final = "{text}. Set failOnDataLoss to false to go on without these records"
TRIMMED: Final = (
    "topic {topic!r} ({partition}): records {start} to {end} were removed before they were read"
)
UNREADABLE: Final = "topic {topic!r} ({partition}): records {start} to {end} are {reason}"
STUCK: Final = "topic {topic!r} ({partition}): the broker has nothing at {start} any more"
VANISHED: Final = "topic {topic!r} ({partition}) is gone; it was read up to {start}"
RECREATED: Final = (
    "topic {topic!r} ({partition}) was deleted and made anew; the old one was read up to {start}"
)
SHORTER: Final = "topic {topic!r} ({partition}) ends at {next}, before {start}, where the query is"
