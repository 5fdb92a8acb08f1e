"""Names and metadata of logs on disk.

    <root>/<log name, escaped>/meta.json
                               <first seq>.seg
                               cursors/<cursor name, escaped>.cur

Names are escaped because a topic may be called what no file can be.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Any
from urllib.parse import quote, unquote

import orjson

from broker.base.durable import NEW_SUFFIX, sync_path
from broker.engine import limits
from broker.engine.log.policy import ACKED, LIMITS, OWNED, LogPolicy, implied_retention
from broker.engine.log.record import crc32c

META_VERSION = 1
META = "meta.json"
META_BYTES = 1 << 12  # more than nearly any has
META_BYTES_MAX = 1 << 20  # far more than any has
CURSORS = "cursors"
CURSOR_SUFFIX = ".cur"
SEGMENT_SUFFIX = ".seg"
UNREADABLE_SUFFIX = ".unreadable"  # put aside; kept
ASIDE = ".unreadable-"  # begins the name of a log's folder that was put aside; kept
ASIDE_NAME_CHARS = 200  # of the log's name in it: file names have 255 bytes
SEQ_MAX = 1 << 62
# each byte of a subject may need an escape
assert 2 * limits.LOG_SUBJECTS_MAX * limits.LOG_SUBJECT_BYTES_MAX < META_BYTES_MAX
DROPPED_SUFFIX = ".dropped"  # ends the name of a segment that is about to be removed
DROPPED = DROPPED_SUFFIX.encode()
SPARE = "next.spare"  # the file of a segment to come


_LOG_ID = re.compile("[0-9a-f]{32}")
_UNSUMMED = {
    *("version", "name", "log_id", "created_ns", "paused", "frontier"),
    *("settings", "face", "floor"),
}


class MetaError(Exception):
    """The metadata of a log is of a version this build does not know, or beyond repair."""


class GarbledMetaError(MetaError):
    """The metadata of a log does not read."""


class QuarantinedError(OSError):
    """The log exists and could not be opened: its name is taken, and it cannot be used."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EIO, "the log could not be opened and is quarantined", path)


class NameTakenError(OSError):
    """The log of this name has an owner, or is to have one and exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EEXIST, "the name belongs to a log of another kind", name)


def escape(name: str) -> str:
    """A file name for any log or cursor name, short and reversible."""
    quoted = quote(name, safe="")
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def unescape(name: str) -> str:
    """The name that `escape` was given."""
    return unquote(name)


def is_log_folder(name: str) -> bool:
    """Whether a file of that name can be a log's folder; others in the same place are not ours."""
    return escape(unescape(name)) == name


def free_name(path: str) -> str:
    """The path, or one like it at which there is nothing yet: what was put aside stays."""
    return f"{path}.{os.urandom(4).hex()}" if os.path.lexists(path) else path


def keep_torn(path: str, offset: int, size: int) -> bool:
    """Copy the end of a file that is about to be cut, unless it is nothing but zeros; whether it
    was more. OSError."""
    with open(path, "rb") as file:
        file.seek(offset)
        torn = file.read(size)
    if not torn.strip(b"\0"):
        return False
    copy = free_name(f"{path}.torn-{offset}")
    try:
        with open(copy, "wb") as file:
            file.write(torn)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(copy)  # half a copy is none
        raise
    return True


def keeps_end(path: str, good: int, unread: int) -> bool:
    """Copy the end of a journal that does not read; whether it can be cut then. On a full disk
    the whole file gets a second name instead, and a new one takes its place later. OSError."""
    try:
        keep_torn(path, good, unread)
    except OSError:
        os.link(path, free_name(f"{path}.torn-{good}"))
        return False
    return True


def put_aside(folder: str) -> str:
    """Take the folder of a log out of the way; its new path. OSError: it is where it was."""
    root, name = os.path.split(folder)
    aside = os.path.join(root, f"{ASIDE}{name[:ASIDE_NAME_CHARS]}-{os.urandom(4).hex()}")
    os.rename(folder, aside)
    return aside


def meta_of(log: Any, floor: int) -> dict[str, Any]:
    """What is stored of a log beside its records; `floor`: all below it are dropped."""
    follows = bool(log.cursors) and not log.paused
    retention, subjects = log.policy.retention, log.policy.subjects
    return {
        "name": log.name,
        "log_id": log.log_id.hex(),
        "created_ns": log.created_ns,
        "paused": log.paused,
        "frontier": None if follows else log.frontier,
        **({"settings": log.settings} if log.settings else {}),
        **({"face": log.protocol} if log.protocol else {}),
        **({"retention": retention} if retention != implied_retention(log.protocol) else {}),
        **({} if subjects is None else {"subjects": list(subjects)}),
        **({"floor": floor} if floor > 1 else {}),
        **({"unclaimed": True} if log.unclaimed else {}),
    }


def has_more_than_header(log: Any) -> bool:
    """Whether metadata that are lost cannot be made again from the header of a segment, which has
    the log's id, its protocol and whether it is sparse: then nothing of the log may be dropped
    before it is claimed."""
    policy = log.policy
    return (
        bool(log.settings)
        or policy.subjects is not None
        or policy.retention not in (OWNED, implied_retention(log.protocol))
    )


def protocol_in(meta: dict[str, Any]) -> str | None:
    """The protocol that owns the log with these metadata; None = none does."""
    return meta.get("face")


def retention_in(meta: dict[str, Any]) -> str:
    """The retention of that log."""
    found = meta.get("retention")
    return implied_retention(protocol_in(meta)) if found is None else str(found)


def subjects_in(meta: dict[str, Any]) -> list[str] | None:
    """The subjects that it is bound to; None = its own name."""
    return meta.get("subjects")


def save_meta(folder: str, meta: dict[str, Any], *, durable: bool = False) -> None:
    """Put the metadata of a log in place in one step; `durable`: safe against a power cut too.

    What replaces other metadata is always on the disk first: else a power cut could leave a name
    with nothing in it. The first metadata of a log are synced with its first records.
    """
    path = os.path.join(folder, META)
    page = {"version": META_VERSION, **meta}
    durable = durable or os.path.exists(path)
    with open(path + NEW_SUFFIX, "wb") as file:
        file.write(orjson.dumps({**page, "crc": crc_of(page)}, option=orjson.OPT_INDENT_2))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(path + NEW_SUFFIX, path)
    if durable:
        sync_path(folder)


def crc_of(page: dict[str, Any]) -> str:
    """The checksum of metadata: of all else in the file, as compact JSON in order of keys."""
    return f"{crc32c(orjson.dumps(page, option=orjson.OPT_SORT_KEYS)):08x}"


def has_meta(folder: str, meta: dict[str, Any]) -> bool:
    """Whether this is what the metadata of a log say already.

    A frontier that is stored counts for nothing while there are cursors.
    """
    try:
        found = load_meta(folder)
    except (MetaError, OSError):
        return False
    if found is not None and meta["frontier"] is None:
        found["frontier"] = None
    return found == {"version": META_VERSION, **meta}


def load_meta(folder: str) -> dict[str, Any] | None:
    """The metadata of a log, None when there is none."""
    path = f"{folder}/{META}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        data = os.read(descriptor, META_BYTES)
        if len(data) == META_BYTES:
            data += os.read(descriptor, META_BYTES_MAX)
        meta = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise GarbledMetaError(f"{path}: {problem}") from None
    finally:
        os.close(descriptor)
    if not isinstance(meta, dict):
        raise GarbledMetaError(f"{path}: this is no metadata")
    stated = meta.pop("crc", None)
    # before there was a checksum, files had certain keys only
    whole = meta.keys() <= _UNSUMMED if stated is None else stated == crc_of(meta)
    version = meta.get("version")
    if whole and stated and isinstance(version, int) and version != META_VERSION:
        raise MetaError(f"{path}: metadata version {version}; this build reads {META_VERSION}")
    if not whole or version != META_VERSION or not _complete(meta):
        raise GarbledMetaError(f"{path}: this is no metadata")
    return meta


def _complete(meta: dict[str, Any]) -> bool:
    frontier, log_id = meta.get("frontier"), meta.get("log_id")
    protocol, floor = protocol_in(meta), meta.get("floor", 0)
    return (
        isinstance(meta.get("name"), str)
        and isinstance(log_id, str)
        and _LOG_ID.fullmatch(log_id) is not None
        and isinstance(meta.get("created_ns"), int)
        and isinstance(meta.get("paused"), bool)
        and (protocol is None or isinstance(protocol, str))
        and isinstance(meta.get("unclaimed", False), bool)
        and meta.get("retention") in (None, ACKED, LIMITS, OWNED)
        and _are_subjects(subjects_in(meta))
        and isinstance(floor, int)
        and 0 <= floor < SEQ_MAX
        and (frontier is None or (isinstance(frontier, int) and 0 < frontier < SEQ_MAX))
    )


def _are_subjects(found: object) -> bool:
    if found is None:
        return True
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        return False
    try:
        LogPolicy(subjects=found)
    except ValueError:
        return False
    return True
