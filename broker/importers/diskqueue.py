"""Reads the data folder of an nsqd, without changing it.

    nsqd.dat                             {"topics": [{"name", "paused", "channels": [...]}]}
    NAME.diskqueue.meta.dat              depth LF readFile,readPos LF writeFile,writePos LF
    NAME.diskqueue.NNNNNN.dat            records: length int32, then the message; big-endian

NAME is `topic` or `topic:channel`. A message: time int64 ns, attempts uint16, 16 hex digits of its
id, body. Files are read to their end, even beyond the write position of the meta file, because they
have more messages after a crash. A damaged record ends the reading of its file, because nothing
marks the beginning of the next record.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import orjson

from broker.base.problem import Problem
from broker.base.units import MESSAGE_SIZE_CEILING
from broker.engine.names import NAME_MAX
from broker.importers import limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METADATA = "nsqd.dat"
_NAME = r"[.a-zA-Z0-9_-]+"
_FILE = re.compile(rf"({_NAME})(?::({_NAME}))?\.diskqueue\.(\d+|meta)\.dat")
_ASIDE = re.compile(rf"{_NAME}(?::{_NAME})?\.diskqueue\.\d+\.dat\.bad")
_META = re.compile(rb"(-?\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n?")
_HEAD = struct.Struct(">iqH16s")  # length, time, attempts, id
_LENGTH = struct.Struct(">i")
_HEX = frozenset(b"0123456789abcdef")


def holds_messages(folder: Path) -> bool:
    """Whether an nsqd has used the folder."""
    return (folder / METADATA).exists() or any(folder.glob("*.diskqueue.*.dat"))


class SourceError(Exception):
    """The folder cannot be read as a whole."""


class Stored(NamedTuple):
    """One message of a file."""

    timestamp_ns: int
    attempts: int
    body: bytes
    size: int  # bytes in the file


@dataclass
class Queue:
    """The files of one topic's or channel's backlog."""

    files: dict[int, Path] = field(default_factory=dict)
    meta: Path | None = None


@dataclass
class Channel:
    """A channel and its backlog."""

    paused: bool = False
    queue: Queue = field(default_factory=Queue)


@dataclass
class Topic:
    """A topic, its backlog, and its channels."""

    paused: bool = False
    queue: Queue = field(default_factory=Queue)
    channels: dict[str, Channel] = field(default_factory=dict)

    def queues(self) -> list[Queue]:
        """All queues of the topic."""
        return [self.queue, *(channel.queue for channel in self.channels.values())]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(f.stat().st_size for queue in self.queues() for f in queue.files.values())


def valid_name(name: object) -> bool:
    """Whether the name is valid in the files of nsqd."""
    return isinstance(name, str) and len(name) <= NAME_MAX and re.fullmatch(_NAME, name) is not None


def read_folder(folder: Path, problems: list[Problem]) -> dict[str, Topic]:
    """Topics by name. SourceError if the folder or its metadata cannot be read."""
    topics: dict[str, Topic] = {}
    try:
        names = sorted(path.name for path in folder.iterdir())
        metadata = (folder / METADATA).read_bytes() if METADATA in names else b""
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror}") from None
    if not holds_messages(folder):
        raise SourceError(f"{folder} is not the data folder of an nsqd: it has no {METADATA}")
    if metadata:
        _read_metadata(folder / METADATA, metadata, topics, problems)
    for name in names:
        if _ASIDE.fullmatch(name):
            problems.append(
                Problem(str(folder / name), 0, "nsqd has set this file aside as damaged")
            )
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        if not valid_name(match[1]) or (match[2] and not valid_name(match[2])):
            problems.append(Problem(str(folder / name), 0, "the name is invalid"))
            continue
        topic = topics.setdefault(match[1], Topic())
        queue = topic.queue
        if match[2]:
            queue = topic.channels.setdefault(match[2], Channel()).queue
        if match[3] == "meta":
            queue.meta = folder / name
        else:
            queue.files[int(match[3])] = folder / name
    return topics


def _read_metadata(
    path: Path, text: bytes, topics: dict[str, Topic], problems: list[Problem]
) -> None:
    try:
        found = orjson.loads(text)
        entries = found["topics"] or []
        for entry in entries:
            if not valid_name(entry["name"]):
                problems.append(Problem(str(path), 0, f"invalid topic name {entry['name']!r}"))
                continue
            topic = topics.setdefault(entry["name"], Topic())
            topic.paused = bool(entry.get("paused"))
            for channel in entry.get("channels") or []:
                if not valid_name(channel["name"]):
                    reason = f"invalid channel name {channel['name']!r}"
                    problems.append(Problem(str(path), 0, reason))
                    continue
                paused = bool(channel.get("paused"))
                topic.channels.setdefault(channel["name"], Channel()).paused = paused
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{path}: not valid metadata of nsqd: {error}") from None


def messages(queue: Queue, problems: list[Problem]) -> Iterator[Stored]:
    """The messages of a queue, oldest first; damaged records are added to `problems`."""
    number, offset = _start(queue, problems)
    for each, path in sorted(queue.files.items()):
        if each >= number:
            yield from _file(path, offset if each == number else 0, problems)


def _start(queue: Queue, problems: list[Problem]) -> tuple[int, int]:
    if queue.meta is None:
        if queue.files:
            first = str(queue.files[min(queue.files)])
            problems.append(
                Problem(first, 0, "its meta file is missing: it is read from the beginning")
            )
        return 0, 0
    try:
        match = _META.fullmatch(queue.meta.read_bytes())
    except OSError as error:
        problems.append(Problem(str(queue.meta), 0, f"{error.strerror}: all files are read"))
        return 0, 0
    if match is None:
        problems.append(Problem(str(queue.meta), 0, "it cannot be parsed: all files are read"))
        return 0, 0
    number, offset = int(match[2]), int(match[3])
    if number not in queue.files and (number, offset) != (int(match[4]), int(match[5])):
        problems.append(Problem(str(queue.meta), 0, f"it names file {number}, which is missing"))
    return number, offset


def _file(path: Path, offset: int, problems: list[Problem]) -> Iterator[Stored]:
    try:
        with path.open("rb", buffering=limits.IMPORT_READ_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            if offset > size:
                problems.append(Problem(str(path), offset, f"the file ends at {size}"))
                return
            file.seek(offset)
            while offset < size:
                head = file.read(_HEAD.size)
                reason, length = _check_head(head, size - offset)
                if reason:
                    rest = size - offset
                    problems.append(Problem(str(path), offset, f"{reason}; {rest} bytes not read"))
                    return
                _, timestamp_ns, attempts, _ = _HEAD.unpack(head)
                body = file.read(length + _LENGTH.size - _HEAD.size)
                record_bytes = length + _LENGTH.size
                yield Stored(timestamp_ns, attempts, body, record_bytes)
                offset += record_bytes
    except OSError as error:
        problems.append(Problem(str(path), offset, str(error.strerror)))


def _check_head(head: bytes, remaining: int) -> tuple[str, int]:
    """Why the record with this head is invalid (empty: it is valid), and its length; `remaining`:
    bytes of the file from the record on."""
    if len(head) < _HEAD.size:
        return "a record is incomplete", 0
    length, timestamp_ns, _, message_id = _HEAD.unpack(head)
    if length < _HEAD.size - _LENGTH.size or length > MESSAGE_SIZE_CEILING:
        return f"invalid record length {length}", length
    if length + _LENGTH.size > remaining:
        return "a record is incomplete", length
    if not _HEX.issuperset(message_id) or timestamp_ns < 0:
        return "invalid record", length
    return "", length
