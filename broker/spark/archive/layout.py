"""The paths of an archive: folders in Hive's form, file names with the range of their records.

    topic=orders/date=2026-11-21/hour=15/orders-0-1-500000-9f3a12bc.parquet
                                         topic - partition - first and last offset - incarnation

The name depends on the records alone, so records that are written twice get the same name. A file
of a whole day has no hour, which Hive writes as `hour=__HIVE_DEFAULT_PARTITION__`, and its name
ends with the number of its records. Names that begin with a dot are incomplete files; readers of
Parquet ignore them.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

NO_HOUR: Final = "__HIVE_DEFAULT_PARTITION__"
SUFFIX: Final = ".parquet"
HOUR_US: Final = 3_600_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_.-]")
_NAME_CHARS: Final = 120  # of a topic in a file name, which may have 255 in all
_FOLDER_CHARS: Final = 240
_INC_CHARS: Final = 8
_NAME: Final = re.compile(
    r"(?P<topic>.+)-(?P<partition>\d+)-(?P<first>\d+)-(?P<last>\d+)-(?P<incarnation>[0-9a-z]+)(?:\.\d+)?\.parquet"
)


class Name(NamedTuple):
    """The parts of a file name."""

    partition: int
    first: int
    last: int
    incarnation: str


def escape(topic: str) -> str:
    """Escape as Hive and Spark do for partition columns: %XX for all but plain characters."""
    return "".join(
        chr(byte) if _PLAIN.match(bytes((byte,))) else f"%{byte:02X}" for byte in topic.encode()
    )


def _short(text: str, most: int) -> str:
    """Cut to `most` characters, the last of them a hash of the whole text."""
    if len(text) <= most:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: most - len(mark) - 1].rstrip('%')}~{mark}"


def topic_folder(topic: str) -> str:
    return f"topic={_short(escape(topic), _FOLDER_CHARS)}"


def folder(topic: str, hour: int | None, date: str = "") -> str:
    """The folder of an hour, counted from 1970, or of a whole day if `hour` is None."""
    if hour is None:
        return f"{topic_folder(topic)}/date={date}/hour={NO_HOUR}"
    at = _EPOCH + timedelta(hours=hour)
    return f"{topic_folder(topic)}/date={at:%Y-%m-%d}/hour={at:%H}"


def file_name(topic: str, name: Name, records: int | None = None) -> str:
    """`records` is in the names of merged files, whose bounds may equal those of a file they
    replace."""
    escaped = _short(escape(topic), _NAME_CHARS)
    if escaped[0] in "._":  # readers would ignore it as a hidden file
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    count = "" if records is None else f".{records}"
    bounds = f"{name.partition}-{name.first}-{name.last}"
    return f"{escaped}-{bounds}-{short_incarnation(name.incarnation)}{count}{SUFFIX}"


def short_incarnation(incarnation: str) -> str:
    return re.sub(r"[^0-9a-z]", "", incarnation.lower())[:_INC_CHARS] or "0"


def parse_name(name: str) -> Name | None:
    """The parts of a name; None if it is not a file of an archive."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Name(
        int(match["partition"]), int(match["first"]), int(match["last"]), match["incarnation"]
    )


def date_of(path: str) -> str:
    """The date in the path of a file."""
    match = re.search(r"/date=(\d+-\d\d-\d\d)/", path)
    return match[1] if match else ""


def is_day_file(path: str) -> bool:
    return f"/hour={NO_HOUR}/" in path
