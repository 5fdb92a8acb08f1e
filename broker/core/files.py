"""Names and metadata of logs on disk.

    <root>/<log name, escaped>/meta.json
                               <first seq>.seg
                               cursors/<cursor name, escaped>.cur
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote, unquote

import orjson

META_VERSION = 1
META = "meta.json"
CURSORS = "cursors"
CURSOR_SUFFIX = ".cur"
SEGMENT_SUFFIX = ".seg"


class MetaError(Exception):
    """The metadata of a log does not read, or is of a version this build does not know."""


def escape(name: str) -> str:
    """A file name for any log or cursor name, short and reversible."""
    quoted = quote(name, safe="")
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def unescape(name: str) -> str:
    """The name that `escape` was given."""
    return unquote(name)


def save_meta(folder: str, meta: dict[str, Any]) -> None:
    """Put the metadata of a log in place in one step."""
    path = os.path.join(folder, META)
    with open(path + ".new", "wb") as file:
        file.write(orjson.dumps({"version": META_VERSION, **meta}, option=orjson.OPT_INDENT_2))
    os.replace(path + ".new", path)


def load_meta(folder: str) -> dict[str, Any] | None:
    """The metadata of a log, None when there is none."""
    path = os.path.join(folder, META)
    try:
        with open(path, "rb") as file:
            meta = orjson.loads(file.read())
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError as problem:
        raise MetaError(f"{path}: {problem}") from None
    version = meta.get("version") if isinstance(meta, dict) else None
    if version != META_VERSION:
        raise MetaError(f"{path}: metadata version {version}; this build reads {META_VERSION}")
    assert isinstance(meta, dict)
    return meta
