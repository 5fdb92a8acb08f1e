"""Names and metadata of logs on disk.

    <root>/<log name, escaped>/meta.json
                               <first seq>.seg
                               cursors/<cursor name, escaped>.cur

Names are escaped because a topic may be called what no file can be.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote, unquote

import orjson

from broker.durable import sync_path

META_VERSION = 1
META = "meta.json"
META_BYTES = 1 << 12  # more than nearly any has
META_BYTES_MAX = 1 << 20  # far more than any has
CURSORS = "cursors"
CURSOR_SUFFIX = ".cur"
SEGMENT_SUFFIX = ".seg"
NEW_SUFFIX = ".new"  # not finished; removed at start
UNREADABLE_SUFFIX = ".unreadable"  # put aside; kept
SEQ_MAX = 1 << 62
DROPPED_SUFFIX = ".dropped"  # ends the name of a segment that is about to be removed
DROPPED = DROPPED_SUFFIX.encode()
SPARE = "next.spare"  # the file of a segment to come; removed at start


_LOG_ID = re.compile("[0-9a-f]{32}")


class MetaError(Exception):
    """The metadata of a log is of a version this build does not know, or beyond repair."""


class GarbledMetaError(MetaError):
    """The metadata of a log does not read."""


def escape(name: str) -> str:
    """A file name for any log or cursor name, short and reversible."""
    quoted = quote(name, safe="")
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def unescape(name: str) -> str:
    """The name that `escape` was given."""
    return unquote(name)


def meta_of(log: Any, floor: int) -> dict[str, Any]:
    """What is stored of a log beside its records; `floor`: none below it is there any more."""
    follows = bool(log.cursors) and not log.paused
    return {
        "name": log.name,
        "log_id": log.log_id.hex(),
        "created_ns": log.created_ns,
        "paused": log.paused,
        "frontier": None if follows else log.frontier,
        **({"settings": log.settings} if log.settings else {}),
        **({"face": log.face} if log.face else {}),
        **({"floor": floor} if floor > 1 else {}),
    }


def save_meta(folder: str, meta: dict[str, Any], *, durable: bool = False) -> None:
    """Put the metadata of a log in place in one step; `durable`: safe against a power cut too."""
    path = os.path.join(folder, META)
    with open(path + ".new", "wb") as file:
        file.write(orjson.dumps({"version": META_VERSION, **meta}, option=orjson.OPT_INDENT_2))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(path + ".new", path)
    if durable:
        sync_path(folder)


def has_meta(folder: str, meta: dict[str, Any]) -> bool:
    """Whether this is what the metadata of a log say already."""
    try:
        return load_meta(folder) == {"version": META_VERSION, **meta}
    except (MetaError, OSError):
        return False


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
    version = meta.get("version") if isinstance(meta, dict) else None
    if isinstance(version, int) and version != META_VERSION:
        raise MetaError(f"{path}: metadata version {version}; this build reads {META_VERSION}")
    if not isinstance(meta, dict) or version != META_VERSION or not _complete(meta):
        raise GarbledMetaError(f"{path}: this is no metadata")
    return meta


def _complete(meta: dict[str, Any]) -> bool:
    frontier, log_id = meta.get("frontier"), meta.get("log_id")
    face, floor = meta.get("face"), meta.get("floor", 0)
    return (
        isinstance(meta.get("name"), str)
        and isinstance(log_id, str)
        and _LOG_ID.fullmatch(log_id) is not None
        and isinstance(meta.get("created_ns"), int)
        and isinstance(meta.get("paused"), bool)
        and (face is None or isinstance(face, str))
        and isinstance(floor, int)
        and 0 <= floor < SEQ_MAX
        and (frontier is None or (isinstance(frontier, int) and 0 < frontier < SEQ_MAX))
    )
