"""What the Spark jobs tell their user. `{name}` is filled in."""

from __future__ import annotations

from typing import Final


class JobError(Exception):
    """The job cannot go on; its text is one line for the user."""


class ConflictError(JobError):
    """Somebody else has written the next version of a manifest."""


# --- before anything starts ------------------------------------------------------------------

NO_EXTRA: Final = "{module} is not installed here: pip install 'twinwire[spark]'"
NO_JAVA: Final = "no Java is found: install a Java 17 runtime, or set JAVA_HOME"
NO_SPARK: Final = "Spark does not start: {text}"
SPARK_GONE: Final = "Spark ended under this job; the same command goes on where it was"
WHICH_TOPICS: Final = "give --topics or --pattern, and not both"
BAD_PAIR: Final = "{option} {text!r} is not of the form KEY=VALUE"
BAD_TIME: Final = (
    "{text!r} is no time as 2026-11-21, 2026-11-21T15:04:05 (UTC) or 90s, 15m, 6h, 2d ago"
)
BAD_DURATION: Final = "{text!r} is no duration as 90s, 15m, 6h or 2d"

STOPPED: Final = "stopped before the end; the same command goes on where it was"
NEEDS_CHECKPOINT: Final = "--checkpoint DIR is required: it is where Spark keeps its place"
QUERY_FAILED: Final = "the query failed: {text}"

# --- manifests -------------------------------------------------------------------------------

NO_ARCHIVE: Final = "{folder} is no archive: it has no _manifest/archive.json"
NOT_LOCAL: Final = (
    "{folder} is a URI: an archive is a folder that driver and executors all see, such as NFS"
)
NEWER_FORMAT: Final = "{path} has format {format}: this version reads up to {known}"
BAD_MANIFEST: Final = "{path} does not read: {text}"
LOCKED: Final = "another {job} job is at work on {folder}"
CONFLICT: Final = "{folder}: version {version} of the manifest was written by somebody else"
MISSING_VERSION: Final = "{folder}: version {version} of the manifest is missing"

# --- archive ---------------------------------------------------------------------------------

DATA_LOSS: Final = "{text}. --on-loss gap records that in the manifest and goes on"
LOST_TRIMMED: Final = (
    "topic {topic} ({partition}): records {first} to {last} were removed before they were archived"
)
LOST_RECREATED: Final = (
    "topic {topic} ({partition}) was deleted and made anew; the old one is archived up to {first}"
)
LOST_SET_BACK: Final = (
    "topic {topic} ({partition}) ends at {next}, before {first}, up to where it is archived"
)
LOST_DELETED: Final = "topic {topic} ({partition}) is gone; it is archived up to {first}"
NO_HOLDS: Final = "the broker knows no holds and may remove what is not archived yet: {text}"
MAY_NOT_HOLD: Final = "{text}: --no-hold does without"
NOT_COVERED: Final = (
    "topic {topic} ({partition}): a task was to read up to {end} and ended at {seq}"
)
WAITS: Final = "{text}; trying for {seconds} s"
BROKER_DOWN: Final = "{text}; tried for {seconds} s"
FAILED_TASK: Final = "a task failed: {text}"

NOT_SHARED: Final = (
    "{folder}: {host} does not see what this machine writes there; driver and executors need one"
    " folder that all of them share"
)
NOT_THERE: Final = (
    "{path}: an executor says that it wrote this file, and it is not here; nothing was archived."
    " Driver and executors need one folder that all of them share"
)
WRONG_SIZE: Final = "{path}: has {found} bytes, its writer said {said}; nothing was archived"

# --- compact ---------------------------------------------------------------------------------

NOT_SAME: Final = (
    "{folder}: the new files do not have the records of the old ones; nothing was changed"
)
TWICE: Final = "{path}: offset {offset} is there twice; nothing was changed"

# --- replay ----------------------------------------------------------------------------------

REPLAY_CHANGED: Final = "replay {id!r} was begun with other options: {options}"
REPLAY_ELSEWHERE: Final = (
    "replay {id!r} was begun to another broker than {server}:"
    " one to this broker needs an id of its own"
)
REPLAY_ID: Final = "--replay-id: letters, digits, '-', '_', '.', at most 100"
BAD_WHERE: Final = "--where: {text}"
ONE_SERVER: Final = "--servers: a replay goes to one broker"
BAD_SUBJECT: Final = "--subject {text!r} is no subject with wildcards as orders.*.new or orders.>"
NOTHING_TO_REPLAY: Final = "nothing in {folder} is of these topics and times"
