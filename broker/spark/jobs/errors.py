"""Error texts of the Spark jobs. `{name}` is filled in."""

from __future__ import annotations

from typing import Final


class JobError(Exception):
    """The job cannot continue; the text is one line for the user."""


class ConflictError(JobError):
    """Another process has written the next version of a manifest."""


# --- before anything starts ------------------------------------------------------------------

NO_EXTRA: Final = "{module} is not installed: run pip install 'twinwire[spark]'"
NO_JAVA: Final = "Java was not found: install a Java 17 runtime, or set JAVA_HOME"
NO_SPARK: Final = "Spark does not start: {text}"
SPARK_GONE: Final = "Spark ended before the job; run the same command again to continue"
WHICH_TOPICS: Final = "give --topics or --pattern, and not both"
BAD_PAIR: Final = "invalid {option} {text!r}: expected KEY=VALUE"
BAD_TIME: Final = (
    "invalid time {text!r}: expected 2026-11-21, 2026-11-21T15:04:05 (UTC), or an age such as"
    " 90s, 15m, 6h or 2d"
)
BAD_DURATION: Final = "invalid duration {text!r}: expected a number and a unit, as in 90s, 15m, 6h"

STOPPED: Final = "stopped before the end; run the same command again to continue"
NEEDS_CHECKPOINT: Final = "--checkpoint DIR is required: Spark stores the query's offsets there"
QUERY_FAILED: Final = "the query failed: {text}"

# --- manifests -------------------------------------------------------------------------------

NO_ARCHIVE: Final = "{folder} is not an archive: it has no _manifest/archive.json"
NOT_LOCAL: Final = (
    "{folder} is a URI: an archive is a folder that the driver and all executors share, such as"
    " one on NFS"
)
NEWER_FORMAT: Final = "{path} has format {format}: this version reads up to {known}"
BAD_MANIFEST: Final = "{path} is damaged: {text}"
LOCKED: Final = "another {job} job is running on {folder}"
CONFLICT: Final = "{folder}: version {version} of the manifest was written by another process"
MISSING_VERSION: Final = "{folder}: version {version} of the manifest is missing"

# --- archive ---------------------------------------------------------------------------------

DATA_LOSS: Final = "{text}. Run with --on-loss gap to record this in the manifest and continue"
LOST_TRIMMED: Final = (
    "topic {topic} ({partition}): records {first} to {last} were removed before they were archived"
)
LOST_RECREATED: Final = (
    "topic {topic} ({partition}) was deleted and recreated; the old one is archived up to {first}"
)
LOST_SET_BACK: Final = (
    "topic {topic} ({partition}) was truncated: it is archived up to {next} and now ends at {first}"
)
LOST_DELETED: Final = "topic {topic} ({partition}) was deleted; it is archived up to {first}"
NO_HOLDS: Final = "the broker has no holds and may remove records before they are archived: {text}"
MAY_NOT_HOLD: Final = "{text}; run with --no-hold to archive without holding records on the broker"
NOT_COVERED: Final = (
    "topic {topic} ({partition}): a task ended at {seq}; it should have read up to {end}"
)
MISSING: Final = "{topics}: check --topics, or give --allow-missing"
WAITS: Final = "{text}; retrying for {seconds} s"
BROKER_DOWN: Final = "{text}; retried for {seconds} s"
FAILED_TASK: Final = "a task failed: {text}"

NOT_SHARED: Final = (
    "{folder}: {host} cannot read what this machine has written there; the driver and all"
    " executors must share the folder"
)
NOT_THERE: Final = (
    "{path}: an executor reported this file as written, but it is missing on the driver; nothing"
    " was archived. The driver and all executors must share the folder"
)
WRONG_SIZE: Final = (
    "{path}: the file has {found} bytes, its writer reported {said}; nothing was archived"
)

# --- compact ---------------------------------------------------------------------------------

NOT_SAME: Final = (
    "{folder}: the new files do not have the records of the old ones; nothing was changed"
)
TWICE: Final = "{path}: offset {offset} is duplicated; nothing was changed"

# --- replay ----------------------------------------------------------------------------------

REPLAY_CHANGED: Final = "replay {id!r} was started with other options: {options}"
REPLAY_ELSEWHERE: Final = (
    "replay {id!r} was started for another broker than {server}:"
    " use another --replay-id for this broker"
)
REPLAY_ID: Final = "--replay-id: letters, digits, '-', '_', '.', at most 100"
BAD_WHERE: Final = "--where: {text}"
ONE_SERVER: Final = "--servers: a replay goes to one broker"
BAD_SUBJECT: Final = (
    "invalid --subject {text!r}: expected a subject, perhaps with wildcards, as in orders.*.new"
)
NOTHING_TO_REPLAY: Final = "{folder} has no records of these topics and times"

# --- rollup and triage -----------------------------------------------------------------------

SERVERS_OR_ARCHIVE: Final = "give --servers or --archive"
NO_SUCH_GROUP: Final = "unknown group {group}: the report and --json list the ids of groups"
CANNOT_GO_BACK: Final = "dead letters of group {group} carry no origin ({reason})"
ORIGIN_GONE: Final = (
    "group {group} comes from topic {topic!r}, which broker {partition} does not have: "
    "create that topic to send the dead letters back"
)
NO_WRITER: Final = "the broker does not report what was sent back before: {text}"
STILL_COMMITTING: Final = "the broker is still sending group {group} back: try again in a moment"
