"""`twinwire archive`: writes topics to files, as nsq_to_file does.

A message is finished only after fsync of its file. If writing fails, no more messages are finished,
and the process ends: the server still has all unfinished ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import click

from broker.base.durable import sync_path
from broker.base.values import dataclass
from broker.cli.tools.topics import (
    NAME,
    Ending,
    Source,
    print_error,
    run,
    source_options,
    take_source,
)
from broker.client.nsq import Message, Reader
from broker.client.nsq.lookup import Lookup

_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
_MODE: Final = 0o666


SYNC_S: Final = 30.0
REFRESH_S: Final = 60.0
# Without a new message for this long, the file is synced and its messages are finished.
QUIET_S: Final = 0.25
_UNITS_S: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FOLDER: Final = click.Path(path_type=Path, file_okay=False)


class LayoutError(ValueError):
    """Options that exclude each other."""


@dataclass(frozen=True)
class Layout:
    """The paths of files, and when a new one begins."""

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
        """Whether files are moved when they are complete."""
        return self.work_dir is not None and self.work_dir != self.output_dir

    @property
    def unfinished_folder(self) -> Path:
        """The folder of files while they are written."""
        return self.work_dir or self.output_dir

    def name(self, topic: str, now_s: float) -> str:
        """The name of a file begun at that time, with <REV> not replaced yet."""
        host = socket.gethostname()
        short = host.partition(".")[0]
        identifier = self.host_identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", host)
        name = self.filename_format.replace("<TOPIC>", topic).replace("<HOST>", identifier)
        name = name.replace("<PID>", str(os.getpid()))
        moment = time.strftime(self.datetime_format, time.localtime(now_s))
        name = name.replace("<DATETIME>", moment)
        return name + ".gz" if self.gzip and not name.endswith(".gz") else name


def revision(name: str, number: int) -> str:
    """The name with its revision; the first one has none."""
    return name.replace("<REV>", f"-{number:06d}" if number else "")


class Archive:
    """The current file of a topic. After an OSError everything synced is unchanged."""

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
        """Whether the file has reached its time or size."""
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
        """Begin a file under an unused name."""
        layout, now_s = self._layout, self._clock()
        name = layout.name(self._topic, now_s)
        self._revision = self._revision + 1 if name == self._name else 0
        self._name, self._opened_s = name, now_s
        while True:
            text = revision(name, self._revision)
            path = layout.unfinished_folder / text
            path.parent.mkdir(parents=True, exist_ok=True)
            free = not layout.moves or not (layout.output_dir / text).exists()
            if free and self._claim(path):
                return
            self._revision += 1
            if "<REV>" not in name:
                raise FileExistsError(f"{path} already exists")

    def _claim(self, path: Path) -> bool:
        # A plain file without revisions is continued; any other is a new one.
        append = "<REV>" not in self._layout.filename_format
        try:
            flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_EXCL)
            descriptor = os.open(path, flags, _MODE)
        except FileExistsError:
            return False
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._path, self._size, self._gzip = path, os.fstat(descriptor).st_size, None
        if append and self._size:
            self._end_cut_line(path)
        self._dirty_folders.add(path.parent)
        return True

    def _end_cut_line(self, path: Path) -> None:
        """End a line that a crash cut off, so that the next line does not continue it."""
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                self._put(b"\n")

    def sync(self) -> None:
        """Sync everything written, including the file's name, to the disk."""
        if self._file is None:
            return
        if self._gzip is not None:
            self._put(self._gzip.flush())  # ends the gzip member: everything synced can be read
            self._gzip = None
        os.fsync(self._file.fileno())
        for folder in self._dirty_folders:
            sync_path(folder)
        self._dirty_folders.clear()

    def close(self) -> None:
        """Sync, and move the file to its final path, never over another file."""
        if self._file is None:
            return
        if self._layout.gzip and self._gzip is None and not self._size:
            # an empty file is not a gzip file
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


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"invalid duration {value!r}: expected 30s, 1h30m", param, ctx)
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


DURATION: Final = _Duration()


@click.command("archive")
@click.option("--topic", "topics", type=NAME, multiple=True, help="A topic; may be repeated.")
@click.option("--topic-pattern", help="Regular expression for the topics that nsqlookupd knows.")
@click.option(
    "--topic-refresh",
    type=DURATION,
    default=REFRESH_S,
    help="Interval of the search for new topics.  [default: 60s]",
)
@click.option("--channel", type=NAME, default="archive", show_default=True)
@click.option(
    "--output-dir", type=_FOLDER, default=Path(),
    help="Folder of complete files.  [default: the working directory]",
)  # fmt: skip
@click.option(
    "--work-dir", type=_FOLDER, help="Folder of incomplete files, on the same file system."
)
@click.option(
    "--filename-format",
    default=Layout.filename_format,
    show_default=True,
    help="<TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are replaced.",
)
@click.option("--datetime-format", default=Layout.datetime_format, show_default=True)
@click.option("--host-identifier", default=Layout.host_identifier, show_default=True)
@click.option("--gzip", is_flag=True, help="Compress.")
@click.option(
    "--gzip-level", type=click.IntRange(1, 9), default=Layout.gzip_level, show_default=True
)
@click.option(
    "--rotate-size",
    type=click.IntRange(0),
    default=0,
    help="Start a new file above this many bytes; 0 = never.",
)
@click.option("--rotate-interval", "rotate_interval_s", type=DURATION, default=0.0)
@click.option(
    "--sync-interval",
    "sync_s",
    type=DURATION,
    default=SYNC_S,
    help="Longest time between two syncs.  [default: 30s]",
)
@click.option(
    "--skip-empty-files", is_flag=True, help="Create no file for periods without messages."
)
@source_options
def archive(
    topics: tuple[str, ...],
    topic_pattern: str | None,
    topic_refresh: float,
    channel: str,
    sync_s: float,
    skip_empty_files: bool,
    **given: Any,
) -> None:
    """Write messages to files, one per line.

    No file is overwritten. SIGHUP completes the current files; SIGTERM and SIGINT stop the program.
    """
    source = take_source(given)
    if bool(topics) == bool(topic_pattern):
        raise click.UsageError("give --topic or --topic-pattern, and not both")
    if topic_pattern and not source.lookupd:
        raise click.UsageError("--topic-pattern needs --lookupd-http-address")
    try:
        pattern = re.compile(topic_pattern) if topic_pattern else None
        layout = Layout(**given)
    except (re.error, LayoutError) as error:
        raise click.UsageError(str(error)) from error
    archives = _Archives(source, channel, layout, sync_s, skip_empty_files)
    run(lambda ending: archives.fill(topics, pattern, topic_refresh, ending))


class _Archives:
    """The readers and files of all archived topics."""

    def __init__(
        self, source: Source, channel: str, layout: Layout, sync_s: float, skip_empty: bool
    ) -> None:
        self._source = source
        self._channel = channel
        self._layout = layout
        self._sync_s = sync_s
        self._skip_empty = skip_empty
        self._topics: dict[str, _TopicArchive] = {}

    async def fill(
        self,
        topics: tuple[str, ...],
        pattern: re.Pattern[str] | None,
        refresh_s: float,
        ending: Ending,
    ) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._rotate)
        async with asyncio.TaskGroup() as tasks:
            for topic in topics:
                tasks.create_task(self._open(topic).write(ending))
            if pattern is not None:
                tasks.create_task(self._follow_lookupd(pattern, refresh_s, ending, tasks))

    def _open(self, topic: str) -> _TopicArchive:
        reader = Reader(topic, self._channel, max_attempts=0, **self._source.reader_arguments())
        archive = _TopicArchive(Archive(self._layout, topic), reader, self._sync_s)
        archive.skip_empty = self._skip_empty
        archive.batch_max = self._source.max_in_flight
        self._topics[topic] = archive
        return archive

    def _rotate(self) -> None:
        for archive in self._topics.values():
            archive.rotate.set()

    async def _follow_lookupd(
        self,
        pattern: re.Pattern[str],
        refresh_s: float,
        ending: Ending,
        tasks: asyncio.TaskGroup,
    ) -> None:
        lookup = Lookup(self._source.lookupd)
        while not ending.asked:
            names, failures = await lookup.topics()
            for failure in failures:
                print_error(failure)
            for topic in sorted(names - self._topics.keys()):
                if pattern.search(topic):
                    tasks.create_task(self._open(topic).write(ending))
            await ending.during(asyncio.sleep(refresh_s))
        await lookup.close()


class _TopicArchive:
    """One topic: its reader and its file."""

    skip_empty = False
    batch_max = 1

    def __init__(self, archive: Archive, reader: Reader, sync_s: float) -> None:
        self.rotate = asyncio.Event()  # complete the current file
        self._archive = archive
        self._reader = reader
        self._sync_s = sync_s
        self._unsafe: list[Message] = []  # written and not yet synced
        self._arrived: asyncio.Queue[Message] = asyncio.Queue()

    async def write(self, ending: Ending) -> None:
        """Archive until the tool stops or the disk fails."""
        await self._reader.start()
        forwarder = asyncio.ensure_future(self._forward())
        try:
            if not self.skip_empty:
                await asyncio.to_thread(self._archive.open)
            while not ending.asked:
                await self._step(ending)
            await self._sync_and_finish()
            await asyncio.to_thread(self._archive.close)
        except OSError as error:
            ending.fail(f"{self._reader.topic}: archiving stops: {error}")
        finally:
            forwarder.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await forwarder
            await self._requeue_unfinished()

    async def _forward(self) -> None:
        async for message in self._reader:
            self._arrived.put_nowait(message)

    async def _step(self, ending: Ending) -> None:
        """Write and sync all messages that have arrived."""
        loop = asyncio.get_running_loop()
        sync_at_s = loop.time() + self._sync_s
        while len(self._unsafe) < self.batch_max and not self.rotate.is_set():
            wait_s = min(QUIET_S if self._unsafe else self._sync_s, sync_at_s - loop.time())
            batch = await self._take(wait_s, ending)
            if not batch:
                break
            # Added to the list first: if writing fails, they are requeued.
            self._unsafe += batch
            if self._archive.due:
                await self._end_file(len(batch))
            await asyncio.to_thread(self._write, batch)
        await self._sync_and_finish()
        if self.rotate.is_set() or self._archive.due:
            self.rotate.clear()
            await self._end_file(0)
            if not self.skip_empty and not ending.asked:
                await asyncio.to_thread(self._archive.open)

    async def _take(self, wait_s: float, ending: Ending) -> list[Message]:
        if self._arrived.empty():
            getting = asyncio.ensure_future(self._arrived.get())
            others = [asyncio.ensure_future(e.wait()) for e in (ending, self.rotate)]
            await asyncio.wait(
                {getting, *others}, timeout=max(0.0, wait_s), return_when="FIRST_COMPLETED"
            )
            for waiting in others:
                waiting.cancel()
            if not getting.done():
                getting.cancel()
                return []
            batch = [getting.result()]
        else:
            batch = []
        while not self._arrived.empty() and len(self._unsafe) + len(batch) < self.batch_max:
            batch.append(self._arrived.get_nowait())
        return batch

    def _write(self, batch: list[Message]) -> None:
        for message in batch:
            self._archive.write(message.body)

    async def _end_file(self, unwritten: int) -> None:
        await asyncio.to_thread(self._archive.close)
        written = len(self._unsafe) - unwritten
        for message in self._unsafe[:written]:
            message.finish()
        del self._unsafe[:written]

    async def _sync_and_finish(self) -> None:
        """Sync, and only then finish."""
        if self._unsafe:
            await asyncio.to_thread(self._archive.sync)
            for message in self._unsafe:
                message.finish()
            self._unsafe.clear()

    async def _requeue_unfinished(self) -> None:
        """Requeue unfinished messages after CLS, so that this connection does not get them
        again."""
        closing = asyncio.ensure_future(self._reader.close())
        await asyncio.sleep(0)
        while not self._arrived.empty():
            self._unsafe.append(self._arrived.get_nowait())
        for message in self._unsafe:
            message.requeue(0, backoff=False)
        await closing
