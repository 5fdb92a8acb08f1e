"""Where the records of an archive are: folders in Hive's form, names that say which records.

    topic=orders/date=2026-11-21/hour=15/orders-0-1-500000-9f3a12bc.parquet
                                         topic - partition - first and last offset - incarnation

The name follows from the records alone, so what is written twice has the same name. A file of a
whole day has no hour, which Hive writes as `hour=__HIVE_DEFAULT_PARTITION__`, and in its name the
number of its records behind the rest. Names that begin
with a dot are files that are not complete; readers of Parquet pass over them.
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
_NAME_CHARS: Final = 120  # of a topic in a file's name: 255 is the most for all of it
_FOLDER_CHARS: Final = 240
_INC_CHARS: Final = 8
_NAME: Final = re.compile(
    r"(?P<topic>.+)-(?P<partition>\d+)-(?P<first>\d+)-(?P<last>\d+)-(?P<incarnation>[0-9a-z]+)(?:\.\d+)?\.parquet"
)


class Name(NamedTuple):
    """What the name of a file says."""

    partition: int
    first: int
    last: int
    incarnation: str


def escape(topic: str) -> str:
    """As Hive and Spark escape the value of a partition column: %XX for what is not plain."""
    return "".join(
        chr(byte) if _PLAIN.match(bytes((byte,))) else f"%{byte:02X}" for byte in topic.encode()
    )


def _short(text: str, most: int) -> str:
    """Cut, with a hash of what was cut off in its place."""
    if len(text) <= most:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: most - len(mark) - 1].rstrip('%')}~{mark}"


def topic_folder(topic: str) -> str:
    return f"topic={_short(escape(topic), _FOLDER_CHARS)}"


def folder(topic: str, hour: int | None, date: str = "") -> str:
    """Of an hour, counted from 1970; of a whole day where `hour` is None."""
    if hour is None:
        return f"{topic_folder(topic)}/date={date}/hour={NO_HOUR}"
    at = _EPOCH + timedelta(hours=hour)
    return f"{topic_folder(topic)}/date={at:%Y-%m-%d}/hour={at:%H}"


def file_name(topic: str, name: Name, records: int | None = None) -> str:
    """`records` is in the names of merged files: they may have the bounds of what they replace."""
    plain = _short(escape(topic), _NAME_CHARS)
    if plain[0] in "._":  # readers would take it for a hidden file
        plain = f"%{ord(plain[0]):02X}{plain[1:]}"
    count = "" if records is None else f".{records}"
    bounds = f"{name.partition}-{name.first}-{name.last}"
    return f"{plain}-{bounds}-{short_incarnation(name.incarnation)}{count}{SUFFIX}"


def short_incarnation(incarnation: str) -> str:
    return re.sub(r"[^0-9a-z]", "", incarnation.lower())[:_INC_CHARS] or "0"


def parse_name(name: str) -> Name | None:
    """None: no file of ours."""
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
