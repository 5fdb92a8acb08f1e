"""Files of commits and writers. Each is replaced atomically and synced.

    <data>/staged/.intents/<writer>.json    a commit that has begun; removed when it is finished
    <data>/staged/<writer>/state.json       the last epoch of each topic

A commit begins when its intent is on the disk; an intent that the next start finds is finished.
Both files have a checksum. While one is unreadable, its writer cannot commit until an operator has
handled it, because it is unknown which of the writer's records are in the logs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeVar

from broker.base.durable import make_folder, sealed, unsealed
from broker.base.values import dataclass
from broker.engine.bulk.blocks import find_staged, remove_file, replace_file, sync_path
from broker.engine.log.files import (
    SEGMENT_SUFFIX,
    UNREADABLE_SUFFIX,
    MetaError,
    escape,
    load_meta,
    unescape,
)
from broker.engine.log.record import FormatError, check_header
from broker.engine.recovery import settle_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

log = logging.getLogger("broker.bulk")

VERSION: Final = 1
INTENTS: Final = ".intents"
STATE: Final = "state.json"
COMMITTED: Final = "committed"
DELETED: Final = "deleted"
READ_AGAIN_S: Final = (0.02, 0.2)  # pauses before an intent that cannot be read is read again
FILE_HEADER_BYTES: Final = 64
_SEQ_END: Final = 2**64 - 1
Range = tuple[int, int]  # [start, end)
F = TypeVar("F", "Intent", "WriterState")


class IntentError(Exception):
    """A file of a writer cannot be used."""


class VersionError(IntentError):
    """A file is of a version that this build does not know."""


@dataclass(slots=True)
class Plan:
    """One topic of a commit."""

    log_id: str
    first: int  # no record of the commit has a lower seq, unless `low` says so
    attempts: list[tuple[int, str, int]]  # part, attempt, bytes; in the order they are appended
    have: list[Range] = field(
        default_factory=list
    )  # numbers of records that are in the log; found after a crash
    low: int | None = None  # the lowest and highest seq of those records
    high: int | None = None

    def add_stored(self, ranges: Iterable[Range], low: int, high: int) -> None:
        """Add records that are in the log."""
        self.have = merged([*self.have, *ranges])
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


@dataclass(slots=True)
class Intent:
    """A commit that has begun."""

    version: int
    writer: str
    epoch: int
    id: str
    topics: dict[str, Plan]


@dataclass(slots=True)
class Done:
    """The last commit of a writer to a topic."""

    epoch: int
    records: int
    first: int | None
    last: int | None
    state: str = COMMITTED

    def page(self, epoch: int, state: str) -> dict[str, object]:
        """A topic in the response to a commit; counts of older epochs are not stored."""
        if self.epoch != epoch:
            return {"records": None, "first": None, "last": None, "state": state}
        return {"records": self.records, "first": self.first, "last": self.last, "state": state}


@dataclass(slots=True)
class WriterState:
    """The stored state of a writer."""

    version: int
    writer: str
    topics: dict[str, Done]
    owner: str | None = None  # the name of its token; None: used without tokens only


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The ranges, sorted; those that touch or overlap are joined."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _load(path: Path, kind: type[F]) -> F | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    import msgspec  # most brokers start without an intent

    try:
        found = msgspec.json.decode(unsealed(data), type=kind)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise IntentError(f"{path}: {problem}") from None
    if found.version != VERSION:
        raise VersionError(f"{path}: version {found.version}; this build reads {VERSION}")
    return found


def _save(path: Path, state: Intent | WriterState) -> None:
    """OSError."""
    import msgspec

    data = sealed(msgspec.json.encode(state))
    error = replace_file(os.fsencode(path), data, os.fsencode(path.parent))
    if error:
        raise OSError(error, os.strerror(error), str(path))


def intent_path(root: Path, writer: str) -> Path:
    """The file of a writer's pending commit."""
    return root / INTENTS / f"{escape(writer)}.json"


def save_intent(root: Path, intent: Intent) -> None:
    """Begin a commit. OSError: it is unknown whether it has begun."""
    make_folder(root / INTENTS)  # it syncs the name even if another commit creates the folder
    _save(intent_path(root, intent.writer), intent)


def remove_intent(root: Path, writer: str) -> None:
    """End a commit. OSError."""
    error = remove_file(os.fsencode(intent_path(root, writer)))
    if error:
        raise OSError(error, os.strerror(error), str(intent_path(root, writer)))


def load_intents(root: Path) -> tuple[list[Intent], dict[str, str]]:
    """All commits that have begun; and by writer, why its intent is unreadable. OSError: the
    folder cannot be read.

    An unreadable file is put aside, and blocks its writer for as long as it exists. That includes
    a file that cannot be read only now: until the next start nothing would hold the records of its
    logs, and that start would append records again that had been read and dropped.
    """
    folder, found, unknown = root / INTENTS, list[Intent](), dict[str, str]()
    if not folder.exists():
        return found, unknown
    for path in sorted(folder.iterdir()):
        writer = unescape(path.name.removesuffix(UNREADABLE_SUFFIX).removesuffix(".json"))
        if path.name.endswith(f".json{UNREADABLE_SUFFIX}"):
            unknown[writer] = f"{path}: the commit under way is unreadable"
        elif path.suffix == ".json":
            try:
                intent = _load_with_retries(path)
            except VersionError as problem:
                unknown[writer] = str(problem)
            except (IntentError, OSError) as problem:
                unknown[writer] = str(problem)
                with contextlib.suppress(OSError):  # if it fails, the next start reads it again
                    path.replace(path.with_name(path.name + UNREADABLE_SUFFIX))
            else:
                found += [] if intent is None else [intent]
    return found, unknown


def _load_with_retries(path: Path) -> Intent | None:
    """Read an intent; a failed read is repeated after each pause of READ_AGAIN_S."""
    for pause_s in READ_AGAIN_S:
        try:
            return _load(path, Intent)
        except OSError as problem:
            log.warning("%s: %s", path, problem)
            time.sleep(pause_s)
    return _load(path, Intent)


def load_state(root: Path, writer: str) -> WriterState | None:
    """The stored state of a writer; None if it has none. IntentError, OSError."""
    return _load(root / escape(writer) / STATE, WriterState)


def save_state(root: Path, writer: str, topics: dict[str, Done], owner: str | None) -> None:
    """Store the last epochs and the owner. OSError."""
    folder = root / escape(writer)
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / STATE, WriterState(VERSION, writer, topics, owner))
    _sync(root)


def writers_before(root: Path, time_ns: int) -> tuple[list[str], int]:
    """The writers whose last commit, or first use without a commit, is older than `time_ns`; and
    the number of all writers. OSError."""
    found, count = [], 0
    for folder in root.iterdir():
        state = folder / STATE
        if folder.name.startswith(".") or not state.exists():
            continue
        count += 1
        if state.stat().st_mtime_ns < time_ns:
            found.append(unescape(folder.name))
    return found, count


def forget_writer(root: Path, writer: str, time_ns: int) -> bool:
    """Remove a writer's state, so that its epochs can be used again. False: the state is newer than
    `time_ns`, because of a commit after `writers_before`. OSError."""
    folder = root / escape(writer)
    state = folder / STATE
    if state.exists() and state.stat().st_mtime_ns >= time_ns:
        return False
    state.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty: it has staged blocks
        folder.rmdir()
    return True


def _sync(path: Path) -> None:
    error = sync_path(os.fsencode(path))
    if error:
        raise OSError(error, os.strerror(error), str(path))


# --- after a crash


def segment_files(folder: Path, first: int) -> list[tuple[int, int, Path]]:
    """(first seq, seq after the last, path) of the segments that have records from `first` on."""
    found = [
        (int(path.stem), path)
        for path in folder.iterdir()
        if path.suffix == SEGMENT_SUFFIX and path.stem.isdigit()
    ]
    found.sort()
    ends = [seq for seq, _ in found[1:]] + [_SEQ_END]
    return [(seq, end, path) for (seq, path), end in zip(found, ends, strict=False) if end > first]


def find_stored(
    plan: Plan, folder: Path, commit_id: bytes, ends: Mapping[int, int] | None = None
) -> None:
    """Add the records of the commit that are in the files of a log to the plan. OSError.

    `ends`: for a log that is open and synced, the bytes of each file by its first seq.
    """
    for first, end, path in segment_files(folder, plan.first):
        if ends and first > max(ends):
            break  # created after `ends` was made
        name = os.fsencode(path)
        if ends is None:
            _sync(path)  # records that are taken as stored must be durable
        size = sys.maxsize if ends is None else ends.get(first, sys.maxsize)
        ranges, low, high = find_staged(
            name, bytes.fromhex(plan.log_id), first, end, commit_id, size
        )
        if ranges:
            plan.add_stored(ranges, low, high)


def survey(
    root: Path, logs: Path, uncertain: set[str] | None = None
) -> tuple[list[Intent], dict[str, str]]:
    """All commits that have begun, with the records that their logs already have; and by writer,
    why its commit cannot be finished now. OSError.

    It runs before the engine opens the logs, because opening a log drops segments that its readers
    have finished. The intents are stored with the records that were found, which may be dropped
    later. Writers whose logs could not be read are added to `uncertain`; these logs must be
    searched again. A commit whose writer's state is unreadable is in both results: it waits for
    the operator, and until then its logs and staged blocks must be kept.
    """
    intents, unknown = load_intents(root)
    uncertain = set() if uncertain is None else uncertain
    found = []
    for intent in intents:
        try:
            _find_records(intent, _done(root, intent.writer, unknown), logs)
        except (FormatError, OSError) as problem:
            log.error("the commit of writer %s: %s", intent.writer, problem)
            uncertain.add(intent.writer)
        try:
            save_intent(root, intent)
        except OSError as problem:  # a full disk: it is stored before the commit continues
            log.warning("the commit of writer %s: %s", intent.writer, problem)
        found.append(intent)
    return found, unknown


def _done(root: Path, writer: str, unknown: dict[str, str]) -> Mapping[str, Done]:
    """The last epoch of each topic. None if the writer's state is unreadable; the reason is added
    to `unknown`. OSError."""
    try:
        state = load_state(root, writer)
    except IntentError as problem:
        unknown[writer] = str(problem)
        return {}
    return {} if state is None else state.topics


def _find_records(intent: Intent, done: Mapping[str, Done], logs: Path) -> None:
    """Add the records of a commit that are in the logs to its plans. OSError, FormatError."""
    for topic, plan in intent.topics.items():
        folder = logs / escape(topic)
        if topic in done and done[topic].epoch >= intent.epoch:
            continue
        if folder.is_dir():
            for problem in settle_names(str(folder)):  # so that all its files are searched
                log.warning("%s", problem)
        if _log_id(folder) == plan.log_id:
            find_stored(plan, folder, bytes.fromhex(intent.id))


def _log_id(folder: Path) -> str | None:
    """The id of the log in a folder; None if it has no log. OSError, FormatError."""
    try:
        meta = load_meta(str(folder))
    except MetaError:
        meta = None
    if meta is not None:
        return str(meta["log_id"])
    if not folder.is_dir():
        return None
    for _, _, path in segment_files(folder, 0):  # as the engine does when it opens such a log
        with path.open("rb") as file:
            header = check_header(file.read(FILE_HEADER_BYTES), os.fsencode(path))
        if header is not None:
            return str(header[0].hex())
    return None
