"""Run processes under the recorder and keep the result: a history and a ledger."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from support.servers.processes import Address

from powercut.history import (
    HEAD,
    MARK,
    NEVER,
    WRITE,
    History,
    RecordError,
    Tree,
    Without,
    read_tree,
)
from powercut.serving import config, serve

HERE = Path(__file__).parent
GIVEN = "given"  # the line of a ledger before which there is no cut
DEADLINE_S = 60.0
PERIOD_DEADLINE_S = 20.0  # for what is to be synced within a second
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


def library(folder: Path) -> Path:
    """The recorder, compiled."""
    made = folder / "recorder.so"
    if not made.exists():
        fresh = folder / f"recorder.{os.getpid()}.so"
        flags = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
        command = ["gcc", *flags, str(HERE / "recorder.c"), "-o", str(fresh), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        fresh.replace(made)
    return made


def preloaded() -> Any:
    """The recorder in this process, or None if it was started without."""
    path = os.environ.get("LD_PRELOAD", "")
    return ctypes.CDLL(path) if "recorder" in path else None


class Recording:
    """One data folder, the processes that work on it, and what clients were answered."""

    def __init__(self, name: str, delays_us: tuple[int, int] = (300, 20000)) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"powercut-{name}-", dir=SCRATCH))
        self.data = self.folder / "data"
        self.data.mkdir()
        self.record = self.folder / "record"
        self.segment = "4KiB"  # how long a file of a log gets
        self.bulk = True  # whether the listener for bulk readers is open
        self.delays_us = delays_us  # of syncs of files and of folders
        self.base: Tree = {}
        self.inodes: dict[str, int] = {}
        self.pid = 0
        self.ports: dict[str, Address] = {}
        self.out = -1

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                self.stop(signal.SIGKILL)
        if self.out >= 0:
            os.close(self.out)
        if problem is not None and (self.folder / "log").exists():
            problem.add_note((self.folder / "log").read_text()[-4000:])
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self) -> None:
        """Start recording; the current content of the folder is on the disk."""
        self.base, self.inodes = read_tree(self.data)
        self.out = os.open(self.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def begin_again(self) -> None:
        """Discard the record; the current content of the folder is on the disk."""
        os.close(self.out)
        self.record.unlink()
        self.begin()

    def mark(self, event: str, **what: Any) -> None:
        """Add a line to the ledger, between the earlier and the later calls."""
        data = json.dumps({"e": event, **what}).encode()
        size = HEAD.size + len(data)
        entry = HEAD.pack(size, MARK, 0, 0, 0, 0, 0, 0, 0, 0, 0) + data
        assert os.write(self.out, entry) == size

    # --- processes

    def run(self, *command: str, fail: tuple[str, int, int] = ("", 0, 0)) -> int:
        """Start our command line with recorded file calls; the process ID.

        Forked, because the start of an interpreter takes longer than all the rest. `fail`: (text,
        n, errno), the nth sync of a path that contains the text.
        """
        recorder = preloaded()
        assert recorder is not None, "this process is not recorded: run tests/powercut"
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            root, record = os.fsencode(self.data), os.fsencode(self.record)
            text = (fail[0].encode(), ctypes.c_long(fail[1]), fail[2])
            delays = [ctypes.c_long(delay) for delay in self.delays_us]
            recorder.powercut_join(root, record, *delays, *text)
            serve(list(command))
        return pid

    def configured(self) -> Path:
        """The file of settings."""
        file = self.folder / "twinwire.toml"
        file.write_text(config(str(self.data), bulk=self.bulk, segment=self.segment))
        return file

    def start(self, fail: tuple[str, int, int] = ("", 0, 0)) -> None:
        """A broker that serves."""
        ports = self.folder / "ports.json"
        ports.unlink(missing_ok=True)
        file = str(self.configured())
        self.pid = self.run("serve", "-c", file, "--ports-file", str(ports), fail=fail)
        deadline, wait = time.monotonic() + DEADLINE_S, threading.Event()
        while not ports.exists():
            assert os.waitpid(self.pid, os.WNOHANG) == (0, 0), "the broker does not start"
            assert time.monotonic() < deadline, "no ports file in time"
            wait.wait(0.005)
        self.ports = {
            listener: Address.parse(text)
            for listener, text in json.loads(ports.read_text()).items()
        }

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the broker and wait for it."""
        os.kill(self.pid, number)
        os.waitpid(self.pid, 0)
        self.pid = 0

    def call(self, *command: str) -> int:
        """Run a command to its end; its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.run(*command), 0)[1])

    def await_synced(self, *topics: str) -> None:
        """Wait until the messages of these topics must be on the disk: far longer than a sync may
        take. From now on they must survive."""
        deadline, wait = time.monotonic() + PERIOD_DEADLINE_S, threading.Event()
        while time.monotonic() < deadline and not self._is_synced(topics):
            wait.wait(0.05)
        self.mark("period", topics=topics)

    def _is_synced(self, topics: tuple[str, ...]) -> bool:
        record = self.record.read_bytes()
        history = History(self.base, self.inodes).read(record, str(self.data))
        names = tuple(f"logs/{topic}/" for topic in topics)
        return all(
            op.durable_at < NEVER
            for op in history.ops
            if op.kind == WRITE and op.path.startswith(names) and op.path.endswith(".seg")
        )

    def source(self, kind: str) -> Path:
        """The location of a folder to import: outside the recorded folder, and outside of what is
        removed when the recording ends."""
        return SCRATCH / f"powercut-source-{os.getppid()}" / kind

    @property
    def nats(self) -> Address:
        """The address for NATS Streaming clients."""
        return self.ports["nats"]

    # --- what became of it

    def history(self) -> Recorded:
        """The complete history, compared with the folder: the recorder missed nothing."""
        record = self.record.read_bytes()
        found = Recorded(self.name, str(self.data), self.base, self.inodes, record)
        tree, _ = read_tree(self.data)
        replayed = found.history.last()
        different = {
            path for path in {*tree, *replayed} if tree.get(path, 0) != replayed.get(path, 0)
        }
        if different:
            raise RecordError(f"the record does not lead to the folder: {sorted(different)}")
        return found


class Recorded:
    """A history that can be kept in a file and read again."""

    def __init__(
        self, name: str, root: str, base: Tree, inodes: dict[str, int], record: bytes
    ) -> None:
        self.name = name
        self.parts = (name, root, base, inodes, record)
        self.history = History(base, inodes).read(record, root)
        self.answered = self.history  # what the ledger is read from
        self.begin = 0
        for at in self.history.marks:
            mark = self.history.ops[at].mark
            if mark is not None and mark["e"] == GIVEN:
                self.begin = at + 1

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(self.parts))

    def without(self, skipped: Without) -> Recorded:
        """Without the syncs of these paths, as if they had not been requested."""
        found = Recorded(*self.parts)
        _, root, base, inodes, record = self.parts
        found.history = History(base, inodes).read(record, root, skipped)
        return found

    @classmethod
    def load(cls, path: Path) -> Recorded:
        return cls(*pickle.loads(path.read_bytes()))
