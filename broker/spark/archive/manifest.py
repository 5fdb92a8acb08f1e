"""The manifest of an archive: its files, and the offsets that they cover.

    DIR/_manifest/archive.json            format and id of the archive
                  v000000000007.json      a version: files added and removed, ranges, gaps
                  s000000000050.json.gz   all versions up to 50 in one
                  pending.json            the ranges of the current batch
                  JOB.lock                locked while such a job runs

A version is written once, by the process that links its name first; after that, the files of its
batch belong to the archive. All seqs of a range are in one of the files, in a gap, or were never
used. This module needs neither Spark nor PyArrow.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from broker.base.durable import sync_path
from broker.spark.jobs.errors import (
    BAD_MANIFEST,
    CONFLICT,
    LOCKED,
    MISSING_VERSION,
    NEWER_FORMAT,
    NO_ARCHIVE,
    NOT_LOCAL,
    ConflictError,
    JobError,
)
from broker.spark.jobs.limits import SNAPSHOT_EVERY
from broker.spark.offsets import Offset, OffsetRange, Offsets, TopicPartition

Entry = TypeVar("Entry", "DataFile", "OffsetRange", "Gap")
FORMAT: Final = 1
FOLDER: Final = "_manifest"


class DataFile(NamedTuple):
    """One Parquet file; `path` is relative to the archive."""

    path: str
    topic: str
    partition: int
    incarnation: str
    first: int  # offset of its first record
    last: int
    records: int
    bytes: int
    from_us: int  # time of its oldest record, us since 1970
    to_us: int


class Gap(NamedTuple):
    """Seqs [first, next) that are not in the archive; first == next: their number is unknown."""

    topic: str
    partition: int
    incarnation: str
    first: int
    next: int
    reason: str  # damaged, missing, trimmed, deleted, made anew (recreated), set back (truncated)


@dataclass(frozen=True, slots=True)
class Change:
    """The content of one version."""

    job: str
    batch: str = ""
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()
    gaps: tuple[Gap, ...] = ()


@dataclass(slots=True)
class State:
    """The sum of all versions."""

    version: int = 0
    batch: str = ""  # of the last archive job
    files: dict[str, DataFile] = field(default_factory=dict)
    ranges: list[OffsetRange] = field(default_factory=list)  # adjacent ranges are joined
    gaps: list[Gap] = field(default_factory=list)
    offsets: Offsets = field(default_factory=dict)  # how far each topic is archived
    trash: tuple[
        str, ...
    ] = ()  # removed by the last version; a killed job may have left them in the folder

    def refused(self, change: Change) -> bool:
        """Whether a change contradicts this state: some records would be in it twice."""
        removed = set(change.remove)
        if removed - self.files.keys():
            return True
        if any(one.path in self.files and one.path not in removed for one in change.add):
            return True
        for one in change.ranges:
            had = self.offsets.get(one.topic_partition)
            if had is not None and had.incarnation == one.incarnation and one.start < had.seq:
                return True
        return False

    def apply(self, change: Change) -> None:
        self.version += 1
        for path in change.remove:
            del self.files[path]
        self.files.update((one.path, one) for one in change.add)
        self.gaps.extend(change.gaps)
        if change.remove:
            self.trash = change.remove
        if change.batch:
            self.batch = change.batch
        for one in change.ranges:
            self._cover(one)

    def _cover(self, one: OffsetRange) -> None:
        for at, had in enumerate(self.ranges):
            if had[:3] == one[:3] and had.end == one.start:
                self.ranges[at] = had._replace(end=one.end)
                break
        else:
            self.ranges.append(one)
        self.offsets[one.topic_partition] = Offset(one.end, one.incarnation)

    def select(
        self,
        topics: Iterable[str] | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[DataFile]:
        """Files with records of these topics and of [since, until), by topic and offset."""
        names = None if topics is None else frozenset(topics)
        found = [
            one
            for one in self.files.values()
            if (names is None or one.topic in names)
            and (since_us is None or one.to_us >= since_us)
            and (until_us is None or one.from_us < until_us)
        ]
        return sorted(found, key=lambda one: (one.topic, one.partition, one.from_us, one.first))


class Manifest:
    """The manifest of the archive in a folder."""

    def __init__(self, folder: str | Path) -> None:
        if "://" in str(folder):
            raise JobError(NOT_LOCAL.format(folder=folder))
        self.archive = Path(folder)
        self.folder = self.archive / FOLDER

    def create(self) -> str:
        """The id of the archive, which is created if it does not exist."""
        path = self.folder / "archive.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            created = {"format": FORMAT, "id": secrets.token_hex(8), "created": _now()}
            with contextlib.suppress(FileExistsError):
                publish(path, _json(created), must_be_new=True)
        return self.id()

    def id(self) -> str:
        path = self.folder / "archive.json"
        if not path.exists():
            raise JobError(NO_ARCHIVE.format(folder=self.archive))
        return str(_read(path)["id"])

    def load(self) -> State:
        """The current state. JobError."""
        self.id()
        for _ in range(3):  # a snapshot may replace versions while they are read
            with contextlib.suppress(FileNotFoundError):
                return self._load()
        raise JobError(MISSING_VERSION.format(folder=self.archive, version="?"))

    def _load(self) -> State:
        names = [path.name for path in self.folder.iterdir()]
        snapshots = sorted(name for name in names if name.startswith("s0"))
        state = _read_snapshot(self.folder / snapshots[-1]) if snapshots else State()
        for version in sorted(_number(name) for name in names if name.startswith("v0")):
            if version <= state.version:
                continue
            if version != state.version + 1:
                raise JobError(
                    MISSING_VERSION.format(folder=self.archive, version=state.version + 1)
                )
            path = self.folder / _version(version)
            change = _change(path, _read(path))
            if state.refused(change):
                raise JobError(BAD_MANIFEST.format(path=path, text="it does not follow"))
            state.apply(change)
        return state

    def commit(self, change: Change, state: State, is_valid: Callable[[State], bool]) -> State:
        """Write the next version. If another job has written it, `still` decides whether this
        change is still valid. ConflictError."""
        text = _json({"format": FORMAT, "time": _now(), **_plain(change)})
        while True:
            if state.refused(change):
                raise ConflictError(CONFLICT.format(folder=self.archive, version=state.version))
            if not self._create_version(state.version + 1, text):
                state = self.load()
                if not is_valid(state):
                    raise ConflictError(CONFLICT.format(folder=self.archive, version=state.version))
                continue
            state.apply(change)
            if state.version % SNAPSHOT_EVERY == 0:
                self._write_snapshot(state)
            return state

    def _create_version(self, version: int, text: bytes) -> bool:
        """Write a version. False: another process has written it.

        The name can also be free because the version is in a snapshot and its file was removed; a
        file written then would never be read. So snapshots are checked before the write, and again
        after it, because another process may have written one meanwhile.
        """
        if self._newest("v0", "s0") >= version:
            return False
        try:
            publish(self.folder / _version(version), text, must_be_new=True)
        except FileExistsError:
            return False
        # The next snapshot may include this version already.
        return self._newest("s0") < version + SNAPSHOT_EVERY

    def _newest(self, *kinds: str) -> int:
        names = (path.name for path in self.folder.iterdir())
        return max((_number(name) for name in names if name.startswith(kinds)), default=0)

    def _write_snapshot(self, state: State) -> None:
        """Write a snapshot, one file for all versions, and remove files that the previous snapshot
        replaces."""
        names = [path.name for path in self.folder.iterdir()]
        before = self._newest("s0")
        snapshot = {
            "version": state.version,
            "batch": state.batch,
            "files": [list(one) for one in state.files.values()],
            "ranges": [list(one) for one in state.ranges],
            "gaps": [list(one) for one in state.gaps],
            "marks": [[*tp, at.incarnation, at.seq] for tp, at in state.offsets.items()],
            "trash": list(state.trash),
        }
        data = gzip.compress(_json({"format": FORMAT, **snapshot}), 1)
        publish(self.folder / f"s{state.version:012d}.json.gz", data)
        for name in names:
            if name[:2] in {"v0", "s0"} and _number(name) < before + (name[0] == "v"):
                (self.folder / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, job: str) -> Iterator[None]:
        """Run one job of a kind at a time; the lock ends with its process. JobError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{job}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobError(LOCKED.format(job=job, folder=self.archive)) from None
            yield

    # Plans that a job stores before it begins, so that it does the same after a crash.

    def save(self, name: str, value: Any) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        publish(path, _json(value))

    def saved(self, name: str) -> Any:
        path = self.folder / name
        return _read(path) if path.exists() else None

    def remove_saved(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


def files(
    folder: str | Path,
    topics: Iterable[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[str]:
    """Paths of the current files of an archive, for any reader of Parquet."""
    manifest = Manifest(folder)
    chosen = manifest.load().select(topics, time_us(since), time_us(until))
    return [str(manifest.archive / one.path) for one in chosen]


def time_us(at: datetime | None) -> int | None:
    """Microseconds since 1970; a time without a zone is UTC."""
    if at is None:
        return None
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def publish(path: Path, data: bytes, *, must_be_new: bool = False) -> None:
    """Write a file atomically and durably. FileExistsError: it exists and `must_be_new` is set."""
    temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temp.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if must_be_new:
            os.link(temp, path)
        else:
            temp.replace(path)
    finally:
        temp.unlink(missing_ok=True)
    sync_path(path.parent)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _version(number: int) -> str:
    return f"v{number:012d}.json"


def _number(name: str) -> int:
    return int(name[1:].split(".", maxsplit=1)[0])


def _plain(change: Change) -> dict[str, Any]:
    return {
        "job": change.job,
        "batch": change.batch,
        "add": [_fields(one) for one in change.add],
        "remove": list(change.remove),
        "ranges": [_fields(one) for one in change.ranges],
        "gaps": [_fields(one) for one in change.gaps],
    }


def _fields(one: DataFile | OffsetRange | Gap) -> dict[str, Any]:
    """The fields by their keys in the file, where an incarnation is `inc`."""
    return {"inc" if name == "incarnation" else name: at for name, at in one._asdict().items()}


def _from_fields(kind: type[Entry], value: Mapping[str, Any]) -> Entry:
    """An entry from its fields in the file. TypeError."""
    return kind(**{"incarnation" if name == "inc" else name: at for name, at in value.items()})


def _read(path: Path) -> Any:
    data = path.read_bytes()
    try:
        value = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        known = value.get("format", FORMAT)
    except (ValueError, AttributeError, EOFError, OSError) as error:
        raise JobError(BAD_MANIFEST.format(path=path, text=error)) from None
    if known > FORMAT:
        raise JobError(NEWER_FORMAT.format(path=path, format=known, known=FORMAT))
    return value


def _change(path: Path, value: Any) -> Change:
    try:
        return Change(
            job=value["job"],
            batch=value["batch"],
            add=tuple(_from_fields(DataFile, one) for one in value["add"]),
            remove=tuple(value["remove"]),
            ranges=tuple(_from_fields(OffsetRange, one) for one in value["ranges"]),
            gaps=tuple(_from_fields(Gap, one) for one in value["gaps"]),
        )
    except (KeyError, TypeError) as error:
        raise JobError(BAD_MANIFEST.format(path=path, text=repr(error))) from None


def _read_snapshot(path: Path) -> State:
    value = _read(path)
    try:
        return State(
            version=value["version"],
            batch=value["batch"],
            files={one[0]: DataFile(*one) for one in value["files"]},
            ranges=[OffsetRange(*one) for one in value["ranges"]],
            gaps=[Gap(*one) for one in value["gaps"]],
            offsets={
                TopicPartition(topic, partition): Offset(seq, incarnation)
                for topic, partition, incarnation, seq in value["marks"]
            },
            trash=tuple(value["trash"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(BAD_MANIFEST.format(path=path, text=repr(error))) from None
