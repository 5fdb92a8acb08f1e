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
META_BYTES = 1 << 12  # more than nearly all metadata need
META_BYTES_MAX = 1 << 20  # far more than any metadata need
CURSORS = "cursors"
CURSOR_SUFFIX = ".cur"
SEGMENT_SUFFIX = ".seg"
UNREADABLE_SUFFIX = ".unreadable"  # of files that were put aside; kept
ASIDE = ".unreadable-"  # the start of the name of a log's folder that was put aside; kept
ASIDE_NAME_CHARS = 200  # of the log's name in it: file names have up to 255 bytes
SEQ_MAX = 1 << 62
# each byte of a subject may need an escape
assert 2 * limits.LOG_SUBJECTS_MAX * limits.LOG_SUBJECT_BYTES_MAX < META_BYTES_MAX
DROPPED_SUFFIX = ".dropped"  # of a segment that is about to be removed
DROPPED = DROPPED_SUFFIX.encode()
SPARE = "next.spare"  # the file of the next segment


_LOG_ID = re.compile("[0-9a-f]{32}")
_UNSUMMED = {
    *("version", "name", "log_id", "created_ns", "paused", "frontier"),
    *("settings", "face", "floor"),
}


class MetaError(Exception):
    """The metadata of a log have a version that this build does not know, or cannot be repaired."""


class GarbledMetaError(MetaError):
    """The metadata of a log are unreadable."""


class QuarantinedError(OSError):
    """The log exists but could not be opened: its name is reserved, and it cannot be used."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EIO, "the log could not be opened and is quarantined", path)


class NameTakenError(OSError):
    """The log of this name has an owner, or cannot get one because it exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EEXIST, "the name belongs to a log of another kind", name)


def escape(name: str) -> str:
    """The file name for a log or cursor name; reversible."""
    quoted = quote(name, safe="")
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def unescape(name: str) -> str:
    """The name that `escape` received."""
    return unquote(name)


def is_log_folder(name: str) -> bool:
    """Whether a folder of this name can be a log's; anything else in the same place is ignored."""
    return escape(unescape(name)) == name


def free_name(path: str) -> str:
    """The path, or a similar unused one, so that nothing is overwritten."""
    return f"{path}.{os.urandom(4).hex()}" if os.path.lexists(path) else path


def save_torn_tail(path: str, offset: int, size: int) -> bool:
    """Copy the end of a file that is about to be cut, unless it is all zeros. Returns whether it
    was more than zeros. OSError."""
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
            os.unlink(copy)  # a partial copy is useless
        raise
    return True


def save_unread_end(path: str, good: int, unread: int) -> bool:
    """Copy the unreadable end of a journal. Returns whether the journal can be cut then. On a full
    disk, the whole file gets a second name instead, and is replaced later. OSError."""
    try:
        save_torn_tail(path, good, unread)
    except OSError:
        os.link(path, free_name(f"{path}.torn-{good}"))
        return False
    return True


def put_aside(folder: str) -> str:
    """Rename the folder of a log. Returns the new path. OSError: nothing has changed."""
    root, name = os.path.split(folder)
    aside = os.path.join(root, f"{ASIDE}{name[:ASIDE_NAME_CHARS]}-{os.urandom(4).hex()}")
    os.rename(folder, aside)
    return aside


def meta_of(log: Any, floor: int) -> dict[str, Any]:
    """The metadata of a log, as they are stored. `floor`: all records below it are dropped."""
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
    """Whether lost metadata could not be recovered from the header of a segment, which has the
    log's id, its protocol and whether it is sparse. Then nothing of the log may be dropped before
    it is claimed."""
    policy = log.policy
    return (
        bool(log.settings)
        or policy.subjects is not None
        or policy.retention not in (OWNED, implied_retention(log.protocol))
    )


def protocol_in(meta: dict[str, Any]) -> str | None:
    """The protocol that owns the log with these metadata; None = none."""
    return meta.get("face")


def retention_in(meta: dict[str, Any]) -> str:
    """The retention of the log with these metadata."""
    found = meta.get("retention")
    return implied_retention(protocol_in(meta)) if found is None else str(found)


def subjects_in(meta: dict[str, Any]) -> list[str] | None:
    """The subjects that the log is bound to; None = its own name."""
    return meta.get("subjects")


def save_meta(folder: str, meta: dict[str, Any], *, durable: bool = False) -> None:
    """Store the metadata of a log in one step. `durable`: safe against a power cut too.

    Replacing other metadata is always durable, because a power cut could otherwise leave an empty
    file. The first metadata of a log are synced with its first records.
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
    """The checksum of metadata: of everything else in the file, as compact JSON with sorted
    keys."""
    return f"{crc32c(orjson.dumps(page, option=orjson.OPT_SORT_KEYS)):08x}"


def has_meta(folder: str, meta: dict[str, Any]) -> bool:
    """Whether the stored metadata are equal to these.

    A stored frontier is ignored while there are cursors.
    """
    try:
        found = load_meta(folder)
    except (MetaError, OSError):
        return False
    if found is not None and meta["frontier"] is None:
        found["frontier"] = None
    return found == {"version": META_VERSION, **meta}


def load_meta(folder: str) -> dict[str, Any] | None:
    """The stored metadata of a log; None: there are none."""
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
    # Files without a checksum, from before there was one, have certain keys only.
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
