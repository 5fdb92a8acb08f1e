"""The files of `twinwire archive`: names, rotation, and the moment when bytes are safe."""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from broker.base.durable import sync_path

_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
_MODE: Final = 0o666


class LayoutError(ValueError):
    """Options that contradict each other."""


@dataclass(frozen=True)
class Layout:
    """Where files go and when the next begins."""

    output_dir: Path
    work_dir: Path | None = None
    filename_format: str = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
    datetime_format: str = "%Y-%m-%d_%H"
    host_identifier: str = "<SHORT_HOST>"
    gzip: bool = False
    gzip_level: int = 6
    rotate_size: int = 0  # bytes; 0 = never
    rotate_interval_s: float = 0.0

    def __post_init__(self) -> None:
        several = self.gzip or self.rotate_size or self.rotate_interval_s or self.moves
        if several and "<REV>" not in self.filename_format:
            raise LayoutError("--filename-format needs <REV> with gzip, rotation or a work folder")

    @property
    def moves(self) -> bool:
        """Whether files are moved when they are done."""
        return self.work_dir is not None and self.work_dir != self.output_dir

    @property
    def makes(self) -> Path:
        """Where files are while they are written."""
        return self.work_dir or self.output_dir

    def name(self, topic: str, now_s: float) -> str:
        """The file's name at that time, <REV> still in it."""
        host = socket.gethostname()
        short = host.partition(".")[0]
        identifier = self.host_identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", host)
        name = self.filename_format.replace("<TOPIC>", topic).replace("<HOST>", identifier)
        name = name.replace("<PID>", str(os.getpid()))
        moment = time.strftime(self.datetime_format, time.localtime(now_s))
        name = name.replace("<DATETIME>", moment)
        return name + ".gz" if self.gzip and not name.endswith(".gz") else name


def revision(name: str, number: int) -> str:
    """The name with its revision in it; the first has none."""
    return name.replace("<REV>", f"-{number:06d}" if number else "")


class Archive:
    """The file that a topic is written to now. Any OSError leaves what was synced as it is."""

    def __init__(self, layout: Layout, topic: str, clock: Callable[[], float] = time.time) -> None:
        self._layout = layout
        self._topic = topic
        self._clock = clock
        self._name = ""
        self._revision = 0
        self._path: Path | None = None
        self._file: IO[bytes] | None = None
        self._gzip: zlib._Compress | None = None
        self._size = 0
        self._opened_s = 0.0
        self._dirty_folders: set[Path] = set()

    @property
    def due(self) -> bool:
        """Whether the file has had its time or size."""
        if self._file is None:
            return False
        layout, now_s = self._layout, self._clock()
        by_time = 0 < layout.rotate_interval_s < now_s - self._opened_s
        by_size = 0 < layout.rotate_size < self._size
        return by_time or by_size or layout.name(self._topic, now_s) != self._name

    def write(self, body: bytes) -> None:
        """One line; it is safe after the next `sync`."""
        if self._file is None:
            self.open()
        assert self._file is not None
        line = body + b"\n"
        if self._gzip is None and self._layout.gzip:
            self._gzip = zlib.compressobj(self._layout.gzip_level, zlib.DEFLATED, _GZIP_WBITS)
        self._put(line if self._gzip is None else self._gzip.compress(line))

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            self._size += written
            view = view[written:]

    def open(self) -> None:
        """Begin a file, under a name nobody has used."""
        layout, now_s = self._layout, self._clock()
        name = layout.name(self._topic, now_s)
        self._revision = self._revision + 1 if name == self._name else 0
        self._name, self._opened_s = name, now_s
        while True:
            text = revision(name, self._revision)
            path = layout.makes / text
            path.parent.mkdir(parents=True, exist_ok=True)
            free = not layout.moves or not (layout.output_dir / text).exists()
            if free and self._claim(path):
                return
            self._revision += 1
            if "<REV>" not in name:
                raise FileExistsError(f"{path} is there already")

    def _claim(self, path: Path) -> bool:
        # A plain file without revisions goes on where it ended; any other is always a new one.
        append = "<REV>" not in self._layout.filename_format
        try:
            flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_EXCL)
            descriptor = os.open(path, flags, _MODE)
        except FileExistsError:
            return False
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._path, self._size, self._gzip = path, os.fstat(descriptor).st_size, None
        if append and self._size:
            self._mend(path)
        self._dirty_folders.add(path.parent)
        return True

    def _mend(self, path: Path) -> None:
        """A line that a crash cut off ends here, so that the next is not glued to it."""
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                self._put(b"\n")

    def sync(self) -> None:
        """Everything written is on the disk when this returns, the file's name too."""
        if self._file is None:
            return
        if self._gzip is not None:
            self._put(self._gzip.flush())  # a whole member: what is synced can be read
            self._gzip = None
        os.fsync(self._file.fileno())
        for folder in self._dirty_folders:
            sync_path(folder)
        self._dirty_folders.clear()

    def close(self) -> None:
        """Sync, and move the file to its place, never over another."""
        if self._file is None:
            return
        if self._layout.gzip and self._gzip is None and not self._size:
            # nothing at all is no gzip file
            self._gzip = zlib.compressobj(self._layout.gzip_level, zlib.DEFLATED, _GZIP_WBITS)
        self.sync()
        self._file.close()
        self._file = None
        if self._layout.moves:
            self._move()

    def _move(self) -> None:
        assert self._path is not None
        number = self._revision
        while True:
            target = self._layout.output_dir / revision(self._name, number)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(self._path, target)
            except FileExistsError:
                number += 1
                continue
            self._revision = number
            sync_path(target.parent)
            self._path.unlink()
            return
