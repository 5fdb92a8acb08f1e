"""Files of configurations: one folder for each stream, one file for each consumer.

    <data>/jetstream/<account>/<stream>/stream.json
    <data>/jetstream/<account>/<stream>/consumers/<consumer>.json, .acks

Names are escaped. A very long name is replaced by a hash; the content of the file has the name. The
folder of a stream that is being deleted is renamed first, so that a start can finish the deletion.
All functions wait for the disk: call them in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from broker.base.durable import NEW_SUFFIX, UnsyncedError, make_folder, save, sync_path, unsealed
from broker.base.values import dataclass
from broker.engine.log.files import escape
from broker.protocols.jetstream.structs import (
    ConsumerConfig,
    GoStruct,
    StreamConfig,
    always,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T", bound=GoStruct)
STREAM_FILE: Final = "stream.json"
CONSUMERS: Final = "consumers"
# Suffixes of folder names; an escaped name has no dot.
_DELETED: Final = ".deleted"  # of a stream that is being deleted
RESTORING: Final = ".restoring"  # of one that is being restored: a start removes its log too
UPLOAD: Final = ".upload"  # of the snapshot that it is restored from
_TOKEN_MAX: Final = 120  # bytes of a file name made of a name


class StoredStream(GoStruct):
    """The content of stream.json."""

    created: str = always("")
    config: StreamConfig = msgspec.field(default_factory=StreamConfig)


class StoredConsumer(GoStruct):
    """The content of the file of a consumer."""

    created: str = always("")
    config: ConsumerConfig = msgspec.field(default_factory=ConsumerConfig)


@dataclass(slots=True)
class StreamFolder:
    """The folder of a stream. `problem`: why its file cannot be used."""

    folder: Path
    name: str  # of the stream, or of the folder if the file is unreadable
    stored: StoredStream | None = None
    problem: str = ""
    is_empty: bool = False  # it has no file of a stream or a consumer


def token_of(name: str) -> str:
    """The name of the file or folder of a stream, consumer or account."""
    token = escape(name).replace(".", "%2E")
    if len(token) <= _TOKEN_MAX:
        return token
    return "=" + hashlib.sha256(name.encode()).hexdigest()[:40]


def log_of(account: str, token: str) -> str:
    """The name of the log of a stream; `token`: the name of its folder."""
    return f"js.{account}/{token}"


def save_stream(folder: Path, stored: StoredStream) -> None:
    """Write stream.json durably. OSError."""
    _save(folder / STREAM_FILE, stored)


def save_consumer(folder: Path, stored: StoredConsumer) -> None:
    """Write the file of a consumer of the stream in this folder durably. OSError."""
    _save(folder / CONSUMERS / f"{token_of(stored.config.name)}.json", stored)


def journal_of(folder: Path, name: str) -> Path:
    """The file with the acks of a consumer of the stream in this folder."""
    return folder / CONSUMERS / f"{token_of(name)}.acks"


def remove_consumer(folder: Path, name: str) -> None:
    """Remove the file of a consumer. OSError."""
    path = folder / CONSUMERS / f"{token_of(name)}.json"
    if path.exists():
        path.unlink()
        sync_path(path.parent)


def _save(path: Path, stored: GoStruct) -> None:
    if not path.parent.is_dir():
        make_folder(path.parent)
    with contextlib.suppress(UnsyncedError):  # the new file has replaced the old one, unsynced
        save(path, encode(stored))
        return
    sync_path(path.parent)


def move_aside(folder: Path) -> Path:
    """Rename the folder of a stream that is being deleted. Returns its new path. OSError: it still
    has its name, and the stream is still served."""
    moved = folder.with_name(folder.name + _DELETED)
    if moved.exists():
        shutil.rmtree(moved)
    folder.rename(moved)
    try:
        sync_path(folder.parent)
    except OSError:
        moved.rename(folder)
        with contextlib.suppress(OSError):  # unsynced: after a power cut it may have the new name
            sync_path(folder.parent)
        raise
    return moved


def find_leftovers(folder: Path) -> list[Path]:
    """The folders that a failed deletion or restoration of the stream has left."""
    left = [folder.with_name(folder.name + end) for end in (_DELETED, RESTORING)]
    return [path for path in left if path.exists()]


def remove(folder: Path) -> None:
    """Remove a folder durably. OSError."""
    shutil.rmtree(folder)
    sync_path(folder.parent)


def account_folders(root: Path) -> Iterator[Path]:
    """The folders of accounts."""
    if root.is_dir():
        yield from sorted(path for path in root.iterdir() if path.is_dir())


def find_streams(folder: Path) -> tuple[list[StreamFolder], list[Path]]:
    """The streams in the folder of an account, and the folders of unfinished deletions and
    restorations."""
    found, unfinished = [], []
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.name.endswith((_DELETED, RESTORING, UPLOAD)):
                unfinished.append(path)
            elif path.is_dir():
                found.append(_find_stream(path))
    return found, unfinished


def _find_stream(folder: Path) -> StreamFolder:
    found = StreamFolder(folder, folder.name)
    try:
        text = unsealed((folder / STREAM_FILE).read_bytes())
        found.name = msgspec.json.decode(text)["config"]["name"]
        found.stored = msgspec.json.decode(text, type=StoredStream)
    except FileNotFoundError as problem:
        found.problem = str(problem)
        found.is_empty = not any(folder.rglob("*.json"))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        found.problem = str(problem)
    return found


def find_consumers(folder: Path) -> tuple[list[StoredConsumer], list[tuple[str, str]]]:
    """The consumers of the stream in this folder, and (name, problem) of unusable files."""
    found: list[StoredConsumer] = []
    problems: list[tuple[str, str]] = []
    inner = folder / CONSUMERS
    for path in sorted(inner.glob("*.json")) if inner.is_dir() else ():
        name = path.stem
        try:
            text = unsealed(path.read_bytes())
            name = msgspec.json.decode(text)["config"]["name"]
            found.append(msgspec.json.decode(text, type=StoredConsumer))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            problems.append((name, str(problem)))
    for path in inner.glob(f"*{NEW_SUFFIX}") if inner.is_dir() else ():
        path.unlink()
    return found, problems
