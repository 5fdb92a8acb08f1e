"""The store of a nats-server: the folders of its accounts with their streams.

<store>/jetstream/<account>/streams/<stream>    see protocols/jetstream/backup/stored.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.base.problem import Problem
from broker.protocols.jetstream.backup.stored import META, FoundStream, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RAFT: Final = "_js_"  # the state of a cluster, in the folder of the system account


def root_of(source: Path) -> Path:
    """The folder of accounts: `jetstream` in `source` if it exists, or `source` itself."""
    return source / "jetstream" if (source / "jetstream").is_dir() else source


def find_streams(
    source: Path, key: str, accounts: tuple[str, ...], problems: list[Problem]
) -> list[FoundStream]:
    """The streams of a store: those of these accounts, or all. SourceError: there is no stream."""
    root = root_of(source)
    folders = sorted(root.glob("*/streams/*/")) if root.is_dir() else []
    if not any((folder / META).exists() for folder in folders):
        raise SourceError(f"{source}: there are no streams of a nats-server in it")
    for folder in root.glob(f"*/{_RAFT}"):
        reason = "the server was part of a cluster: its streams are imported as they are here"
        problems.append(Problem(str(folder), 0, reason))
    return list(_read_streams(folders, key, accounts, problems))


def _read_streams(
    folders: list[Path], key: str, accounts: tuple[str, ...], problems: list[Problem]
) -> Iterator[FoundStream]:
    for folder in folders:
        account = folder.parent.parent.name
        if not (folder / META).exists() or (accounts and account not in accounts):
            continue
        try:
            yield FoundStream(folder, account, key, problems)
        except SourceError as problem:
            problems.append(Problem(str(folder), 0, f"the stream is not imported: {problem}"))
