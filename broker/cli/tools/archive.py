"""`twinwire archive`: writes topics to files, as nsq_to_file does.

A message is finished only when fsync has returned for the file it is in. When writing fails,
nothing more is finished, and the process ends: the server has kept what was not.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from pathlib import Path
from typing import Any, Final

import click

from broker.cli.tools.archive_files import Archive, Layout, LayoutError
from broker.cli.tools.topics import NAME, Ending, Source, run, source_options, take_source, tell
from broker.client.nsq import Message, Reader
from broker.client.nsq.lookup import Lookup

SYNC_S: Final = 30.0
REFRESH_S: Final = 60.0
# With nothing new for so long the file is synced and its messages finished.
QUIET_S: Final = 0.25
_UNITS_S: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is no duration such as 30s or 1h30m", param, ctx)
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


DURATION: Final = _Duration()
_FOLDER: Final = click.Path(path_type=Path, file_okay=False)


@click.command("archive")
@click.option("--topic", "topics", type=NAME, multiple=True, help="May be repeated.")
@click.option("--topic-pattern", help="Regular expression: all topics nsqlookupd knows of.")
@click.option(
    "--topic-refresh",
    type=DURATION,
    default=REFRESH_S,
    help="How often to look for new topics.  [default: 60s]",
)
@click.option("--channel", type=NAME, default="archive", show_default=True)
@click.option("--output-dir", type=_FOLDER, default=Path(), help="Where files go.")
@click.option("--work-dir", type=_FOLDER, help="Where files are until they are complete.")
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
@click.option("--rotate-size", type=click.IntRange(0), default=0, help="Bytes; 0 = never.")
@click.option("--rotate-interval", "rotate_interval_s", type=DURATION, default=0.0)
@click.option(
    "--sync-interval",
    "sync_s",
    type=DURATION,
    default=SYNC_S,
    help="Sync at least that often.  [default: 30s]",
)
@click.option("--skip-empty-files", is_flag=True, help="No file for a time without messages.")
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
    """Write messages to files, one a line.

    Nothing is overwritten. SIGHUP ends the present files; SIGTERM and SIGINT end the program.
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
    shelf = _Shelf(source, channel, layout, sync_s, skip_empty_files)
    run(lambda ending: shelf.fill(topics, pattern, topic_refresh, ending))


class _Shelf:
    """All topics that are archived."""

    def __init__(
        self, source: Source, channel: str, layout: Layout, sync_s: float, skip_empty: bool
    ) -> None:
        self._source = source
        self._channel = channel
        self._layout = layout
        self._sync_s = sync_s
        self._skip_empty = skip_empty
        self._books: dict[str, _Book] = {}

    async def fill(
        self,
        topics: tuple[str, ...],
        pattern: re.Pattern[str] | None,
        refresh_s: float,
        ending: Ending,
    ) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._turn)
        async with asyncio.TaskGroup() as tasks:
            for topic in topics:
                tasks.create_task(self._book(topic).write(ending))
            if pattern is not None:
                tasks.create_task(self._look(pattern, refresh_s, ending, tasks))

    def _book(self, topic: str) -> _Book:
        reader = Reader(topic, self._channel, max_attempts=0, **self._source.reader_arguments())
        book = _Book(Archive(self._layout, topic), reader, self._sync_s)
        book.skip_empty = self._skip_empty
        book.batch_max = self._source.max_in_flight
        self._books[topic] = book
        return book

    def _turn(self) -> None:
        for book in self._books.values():
            book.turn.set()

    async def _look(
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
                tell(failure)
            for topic in sorted(names - self._books.keys()):
                if pattern.search(topic):
                    tasks.create_task(self._book(topic).write(ending))
            await ending.during(asyncio.sleep(refresh_s))
        await lookup.close()


class _Book:
    """One topic: its reader and its file."""

    skip_empty = False
    batch_max = 1

    def __init__(self, archive: Archive, reader: Reader, sync_s: float) -> None:
        self.turn = asyncio.Event()  # end the present file
        self._archive = archive
        self._reader = reader
        self._sync_s = sync_s
        self._unsafe: list[Message] = []  # written and not yet synced
        self._arrived: asyncio.Queue[Message] = asyncio.Queue()

    async def write(self, ending: Ending) -> None:
        """Until it is time to stop, or the disk refuses."""
        await self._reader.start()
        pump = asyncio.ensure_future(self._pump())
        try:
            if not self.skip_empty:
                await asyncio.to_thread(self._archive.open)
            while not ending.asked:
                await self._step(ending)
            await self._safe()
            await asyncio.to_thread(self._archive.close)
        except OSError as error:
            ending.fail(f"{self._reader.topic}: nothing more is written: {error}")
        finally:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump
            await self._give_back()

    async def _pump(self) -> None:
        async for message in self._reader:
            self._arrived.put_nowait(message)

    async def _step(self, ending: Ending) -> None:
        """One batch: what has come is written and synced together."""
        loop = asyncio.get_running_loop()
        sync_at_s = loop.time() + self._sync_s
        while len(self._unsafe) < self.batch_max and not self.turn.is_set():
            wait_s = min(QUIET_S if self._unsafe else self._sync_s, sync_at_s - loop.time())
            batch = await self._take(wait_s, ending)
            if not batch:
                break
            # Into the list first: if writing fails they are given back.
            self._unsafe += batch
            if self._archive.due:
                await self._end_file(len(batch))
            await asyncio.to_thread(self._write, batch)
        await self._safe()
        if self.turn.is_set() or self._archive.due:
            self.turn.clear()
            await self._end_file(0)
            if not self.skip_empty and not ending.asked:
                await asyncio.to_thread(self._archive.open)

    async def _take(self, wait_s: float, ending: Ending) -> list[Message]:
        if self._arrived.empty():
            getting = asyncio.ensure_future(self._arrived.get())
            others = [asyncio.ensure_future(e.wait()) for e in (ending, self.turn)]
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

    async def _safe(self) -> None:
        """Sync, and only then finish."""
        if self._unsafe:
            await asyncio.to_thread(self._archive.sync)
            for message in self._unsafe:
                message.finish()
            self._unsafe.clear()

    async def _give_back(self) -> None:
        """What is not safe goes back, behind CLS: it must not come here again."""
        closing = asyncio.ensure_future(self._reader.close())
        await asyncio.sleep(0)
        while not self._arrived.empty():
            self._unsafe.append(self._arrived.get_nowait())
        for message in self._unsafe:
            message.requeue(0, backoff=False)
        await closing
