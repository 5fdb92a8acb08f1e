"""Adds streams to a data folder: each is built in a separate folder, and moved when it is complete.

A log is moved before its configuration, because a configuration without a log would be an empty
stream. A progress file names the stream that is being moved: if a run ends between the two renames,
the next run completes the move.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.base.durable import make_folder, remove_folder, sync_path
from broker.engine.engine import Engine
from broker.engine.log.files import escape
from broker.engine.log.publish import check_appends
from broker.engine.stream.store import StreamLimits, StreamStore, open_store
from broker.importers.engine import import_engine
from broker.importers.nsqd import is_in_place, sync_tree
from broker.protocols.jetstream import files
from broker.protocols.jetstream.service import JETSTREAM_FOLDER
from broker.server.engine import LOGS_FOLDER

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from broker.config.config import Config
    from broker.importers.nsqd import Progress

_LOGS: Final = "logs"
_CONFIGS: Final = "jetstream"
_PROTOCOL: Final = "jetstream"


class Staging:
    """The streams of a data folder, and the folder in which new ones are built."""

    def __init__(self, data: Path, config: Config, staging: str) -> None:
        """`staging`: the name of the folder for new streams, which is in the data folder."""
        self.data = data
        self.config = config
        self.folder = data / staging

    @property
    def logs(self) -> Path:
        """The folder in which logs are built."""
        return self.folder / _LOGS

    def config_folder(self, account: str, name: str) -> Path:
        """The folder in which the configuration of a stream is built."""
        return self.folder / _CONFIGS / _config_path(account, name)

    def has(self, account: str, name: str) -> bool:
        """Whether the data folder has a configuration or a log of this stream."""
        config = self.data / JETSTREAM_FOLDER / _config_path(account, name)
        return config.exists() or (self.data / LOGS_FOLDER / escape(log_of(account, name))).exists()

    def clear(self) -> None:
        """Remove everything that was built and not moved."""
        remove_folder(self.folder)

    # --- building

    def engine(self, folder: Path) -> AbstractAsyncContextManager[Engine]:
        """An engine on the logs in this folder, without syncs."""
        return import_engine(self.config, folder)

    # --- moving

    def finish_move(self, progress: Progress) -> None:
        """Complete an earlier run that ended between the renames of a stream."""
        moving = progress.own["moving"]
        if moving is None:
            return
        if is_in_place(self.data, moving["log"], moving["log_id"]):
            self._move_config(Path(moving["config"]))
            progress.own["topics"][moving["log"]] = moving["messages"]
        progress.own["moving"] = None
        progress.save()

    def move(self, account: str, name: str, log_id: str, messages: int, progress: Progress) -> None:
        """Sync the files of a stream, and move them into the data folder. OSError."""
        log, config = log_of(account, name), _config_path(account, name)
        sync_tree(self.folder)
        make_folder(self.data / LOGS_FOLDER)
        progress.own["moving"] = {
            "log": log,
            "log_id": log_id,
            "config": str(config),
            "messages": messages,
        }
        progress.save()
        (self.logs / escape(log)).rename(self.data / LOGS_FOLDER / escape(log))
        sync_path(self.data / LOGS_FOLDER)
        self._move_config(config)
        progress.own["topics"][log] = messages
        progress.own["moving"] = None
        progress.save()

    def _move_config(self, path: Path) -> None:
        staged = self.folder / _CONFIGS / path
        target = self.data / JETSTREAM_FOLDER / path
        if staged.exists():
            make_folder(target.parent)
            staged.rename(target)
            sync_path(target.parent)


def log_of(account: str, name: str) -> str:
    """The name of the log of a stream."""
    return files.log_of(account, files.token_of(name))


def _config_path(account: str, name: str) -> Path:
    return Path(files.token_of(account), files.token_of(name))


def open_stream(engine: Engine, name: str) -> StreamStore:
    """Open the log of a stream without limits, which apply only when a server opens it."""
    return open_store(engine, name, StreamLimits(), protocol=_PROTOCOL, sync="none")


async def settle(engine: Engine, store: StreamStore) -> None:
    """Wait until all appended messages are written. OSError."""
    await engine.settle()
    check_appends(store.log)
