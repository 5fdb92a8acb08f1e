"""What is remembered of commits, each file put in place in one step and synced.

    <data>/staged/.intents/<writer>.json    a commit that has begun; gone when it is finished
    <data>/staged/<writer>/state.json       the last epoch of each topic

A commit begins when its intent is on the disk, and has happened from then on: whoever finds an
intent finishes it. Both files carry a checksum. One that does not read stops the commits of its
writer until an operator has looked at it: nobody knows any more what is in the logs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from broker.base.durable import make_folder, sealed, unsealed
from broker.engine.bulk.blocks import find_staged, remove_file, replace_file, sync_path
from broker.engine.log.files import (
    SEGMENT_SUFFIX,
    UNREADABLE_SUFFIX,
    MetaError,
    escape,
    load_meta,
    unescape,
)
from broker.engine.log.segment import FormatError, check_header
from broker.engine.recovery import take_spare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

log = logging.getLogger("broker.bulk")

VERSION: Final = 1
INTENTS: Final = ".intents"
STATE: Final = "state.json"
COMMITTED: Final = "committed"
DELETED: Final = "deleted"
FILE_HEADER_BYTES: Final = 64
_SEQ_END: Final = 2**64 - 1
Range = tuple[int, int]  # first, behind
F = TypeVar("F", "Intent", "Remembered")


class IntentError(Exception):
    """What is remembered of a writer cannot be used."""


class VersionError(IntentError):
    """A file is of a version that this build does not know."""


class Plan(msgspec.Struct):
    """One topic of a commit."""

    log_id: str
    first: int  # no record of the commit has a lower seq, unless `low` says so
    attempts: list[tuple[int, str, int]]  # part, attempt, bytes; in the order they are appended
    have: list[Range] = []  # numbers of records that are in the log; found after an end
    low: int | None = None  # the lowest and highest seq of those
    high: int | None = None

    def learn(self, ranges: Iterable[Range], low: int, high: int) -> None:
        """These are in the log too."""
        self.have = merged([*self.have, *ranges])
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


class Intent(msgspec.Struct):
    """A commit that has begun."""

    version: int
    writer: str
    epoch: int
    id: str
    topics: dict[str, Plan]


class Done(msgspec.Struct):
    """The last commit of a writer to a topic."""

    epoch: int
    records: int
    first: int | None
    last: int | None
    state: str = COMMITTED

    def page(self, epoch: int, state: str) -> dict[str, object]:
        """What a commit is told of a topic; of an older epoch nothing is known any more."""
        if self.epoch != epoch:
            return {"records": None, "first": None, "last": None, "state": state}
        return {"records": self.records, "first": self.first, "last": self.last, "state": state}


class Remembered(msgspec.Struct):
    """What is known of a writer."""

    version: int
    writer: str
    topics: dict[str, Done]
    owner: str | None = None  # the name of the token that uses it; None: used without tokens only


def merged(ranges: Iterable[Range]) -> list[Range]:
    """In order, those that touch each other as one."""
    found: list[Range] = []
    for first, behind in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(behind, found[-1][1]))
        else:
            found.append((first, behind))
    return found


def _load(path: Path, kind: type[F]) -> F | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(unsealed(data), type=kind)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise IntentError(f"{path}: {problem}") from None
    if found.version != VERSION:
        raise VersionError(f"{path}: version {found.version}; this build reads {VERSION}")
    return found


def _save(path: Path, what: Intent | Remembered) -> None:
    """OSError."""
    data = sealed(msgspec.json.encode(what))
    error = replace_file(os.fsencode(path), data, os.fsencode(path.parent))
    if error:
        raise OSError(error, os.strerror(error), str(path))


def intent_path(root: Path, writer: str) -> Path:
    """Where the commit under way of a writer stands."""
    return root / INTENTS / f"{escape(writer)}.json"


def save_intent(root: Path, intent: Intent) -> None:
    """The commit begins. OSError: it is not known whether it does."""
    make_folder(root / INTENTS)  # another commit may be making it: then too its name is synced
    _save(intent_path(root, intent.writer), intent)


def remove_intent(root: Path, writer: str) -> None:
    """The commit is finished. OSError."""
    error = remove_file(os.fsencode(intent_path(root, writer)))
    if error:
        raise OSError(error, os.strerror(error), str(intent_path(root, writer)))


def load_intents(root: Path) -> tuple[list[Intent], dict[str, str]]:
    """All commits that have begun, and by writer why one cannot be known. OSError: the folder.

    A file that does not read is put aside, and counts for as long as it is there.
    """
    folder, found, unknown = root / INTENTS, list[Intent](), dict[str, str]()
    if not folder.exists():
        return found, unknown
    for path in sorted(folder.iterdir()):
        writer = unescape(path.name.partition(".json")[0])
        if path.name.endswith(f".json{UNREADABLE_SUFFIX}"):
            unknown[writer] = f"{path}: the commit under way does not read"
        elif path.suffix == ".json":
            try:
                intent = _load(path, Intent)
            except VersionError as problem:
                unknown[writer] = str(problem)
            except IntentError as problem:
                unknown[writer] = str(problem)
                with contextlib.suppress(OSError):  # else it is found again where it is
                    path.replace(path.with_name(path.name + UNREADABLE_SUFFIX))
            except OSError as problem:
                unknown[writer] = str(problem)
            else:
                found += [] if intent is None else [intent]
    return found, unknown


def load_state(root: Path, writer: str) -> Remembered | None:
    """What is known of a writer; None: nothing. IntentError, OSError."""
    return _load(root / escape(writer) / STATE, Remembered)


def save_state(root: Path, writer: str, topics: dict[str, Done], owner: str | None) -> None:
    """Remember the last epochs and the owner. OSError."""
    folder = root / escape(writer)
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / STATE, Remembered(VERSION, writer, topics, owner))
    _sync(root)


def writers_before(root: Path, time_ns: int) -> tuple[list[str], int]:
    """The writers whose last commit, or first use without one, is older than that, and how many
    there are in all. OSError."""
    found, count = [], 0
    for folder in root.iterdir():
        state = folder / STATE
        if folder.name.startswith(".") or not state.exists():
            continue
        count += 1
        if state.stat().st_mtime_ns < time_ns:
            found.append(unescape(folder.name))
    return found, count


def forget_writer(root: Path, writer: str) -> None:
    """Its epochs may come again. OSError."""
    folder = root / escape(writer)
    (folder / STATE).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something is staged there
        folder.rmdir()


def _sync(path: Path) -> None:
    error = sync_path(os.fsencode(path))
    if error:
        raise OSError(error, os.strerror(error), str(path))


# --- after an end of the process


def segment_files(folder: Path, first: int) -> list[tuple[int, int, Path]]:
    """(first seq, seq behind, path) of the segments that hold records from `first` on."""
    found = [
        (int(path.stem), path)
        for path in folder.iterdir()
        if path.suffix == SEGMENT_SUFFIX and path.stem.isdigit()
    ]
    found.sort()
    ends = [seq for seq, _ in found[1:]] + [_SEQ_END]
    return [(seq, end, path) for (seq, path), end in zip(found, ends, strict=False) if end > first]


def learn(
    plan: Plan, folder: Path, commit_id: bytes, ends: Mapping[int, int] | None = None
) -> None:
    """Find out which records of the commit the files of a log hold. OSError.

    `ends`: of a log that is open, and has synced them, the bytes of each file by its first seq.
    """
    for first, behind, path in segment_files(folder, plan.first):
        if ends and first > max(ends):
            break  # it was made since they were looked at
        name = os.fsencode(path)
        if ends is None:
            _sync(path)  # what is counted as there must stay there
        size = sys.maxsize if ends is None else ends.get(first, sys.maxsize)
        ranges, low, high = find_staged(
            name, bytes.fromhex(plan.log_id), first, behind, commit_id, size
        )
        if ranges:
            plan.learn(ranges, low, high)


def survey(
    root: Path, logs: Path, unsure: set[str] | None = None
) -> tuple[list[Intent], dict[str, str]]:
    """Before the engine opens the logs: all commits that have begun, with what their logs hold.

    Before, because opening a log drops segments that its readers are done with. What was found is
    saved, so that it need not be there another time. The second part says by writer why commits
    that have begun cannot be finished now. `unsure` gets the writers whose logs could not be
    asked: that has to be done again. OSError.
    """
    intents, unknown = load_intents(root)
    unsure = set() if unsure is None else unsure
    found = []
    for intent in intents:
        try:
            state = load_state(root, intent.writer)
            _look_for(intent, {} if state is None else state.topics, logs)
        except IntentError as problem:
            unknown[intent.writer] = str(problem)
            continue
        except (FormatError, OSError) as problem:
            log.error("the commit of writer %s: %s", intent.writer, problem)
            unsure.add(intent.writer)
        try:
            save_intent(root, intent)
        except OSError as problem:  # a full disk: it is saved before the commit goes on
            log.warning("the commit of writer %s: %s", intent.writer, problem)
        found.append(intent)
    return found, unknown


def _look_for(intent: Intent, done: Mapping[str, Done], logs: Path) -> None:
    """Which records of a commit are in the logs. OSError, FormatError."""
    for topic, plan in intent.topics.items():
        folder = logs / escape(topic)
        if topic in done and done[topic].epoch >= intent.epoch:
            continue
        if folder.is_dir():
            take_spare(str(folder))  # its records are found like those of any segment
        if _log_id(folder) == plan.log_id:
            learn(plan, folder, bytes.fromhex(intent.id))


def _log_id(folder: Path) -> str | None:
    """None when there is no such log. OSError, FormatError."""
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
