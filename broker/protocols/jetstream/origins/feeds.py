"""The mirrors and sources of one account: connected to their origins, and where they go on.

What the sources of a stream have copied is in the headers of its messages. It is also noted in a
file, a second later and with the seq of the stream up to which that is known, because messages go
and because a start should not read all of them:

    <data>/jetstream/<account>/<stream>/sources.json    {"to": SEQ, "seqs": [[STREAM, LABEL, SEQ]]}
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from broker.base.durable import save, unsealed
from broker.base.values import dataclass
from broker.engine.bulk.ranges import TimeSearch
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.origins.feed import Feed, sourced_until
from broker.protocols.jetstream.structs import ApiErrorBody, StreamSourceInfo, time_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.jetstream.structs import StreamSource

log = logging.getLogger("broker.jetstream")

SOURCES: Final = "sources.json"
_NOT_COPIED: Final = "only streams with retention limits are copied here"

_ELSEWHERE: Final = "origins in other accounts and domains are not available on this server"
_MISSING: Final = ApiErrorBody(
    code=errors.STREAM_NOT_FOUND.code,
    err_code=errors.STREAM_NOT_FOUND.err_code,
    description=errors.STREAM_NOT_FOUND.text,
)

Key = tuple[str, bytes]  # of a source: the stream and a label of its feed


@dataclass(slots=True)
class _Origin:
    """One mirror or source of a stream."""

    source: StreamSource
    feed: Feed
    problem: ApiErrorBody | None = None


class _Copier:
    """A stream with its origins."""

    def __init__(self, stream: Stream, path: Path | None) -> None:
        """`path`: of the file with what was copied; None = it is in memory."""
        self.stream = stream
        self.path = path
        self.seqs: dict[Key, int] = {}
        self.to = 0  # seq of the stream up to which `seqs` is known
        self.origins: list[_Origin] = []

    def read(self) -> None:
        """Read the file. A damaged one is as none: the messages are read instead."""
        if self.path is None or not self.path.exists():
            return
        try:
            page = msgspec.json.decode(unsealed(self.path.read_bytes()))
            self.to = int(page["to"])
            self.seqs = {(str(a), str(b).encode()): int(n) for a, b, n in page["seqs"]}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            log.warning("%s: %s: the messages of the stream are read instead", self.path, problem)
            self.to, self.seqs = 0, {}

    def learn(self) -> None:
        """Read the headers of the messages that are not known yet."""
        self.to = sourced_until(self.stream.store, self.to, self.seqs)

    def copied(self) -> dict[Key, int]:
        """The same as `seqs`, with what was copied since; it may still fail."""
        found = dict(self.seqs)
        for origin in self.origins:
            if origin.feed.connected and origin.feed.next > 1:
                for label in origin.feed.labels:
                    found[origin.source.name, label] = origin.feed.next - 1
        return found

    def start_of(self, origin: _Origin) -> int:
        """The seq from which on an origin is to be copied; 0 = as it is configured."""
        if origin.feed.mirror:
            return self.stream.store.last_seq + 1 if self.stream.store.last_seq else 0
        known = [self.seqs.get((origin.source.name, label), 0) for label in origin.feed.labels]
        return max(known) + 1 if max(known) else 0


class Feeds:
    """The mirrors and sources of one account."""

    def __init__(
        self, streams: Mapping[str, Stream], folder_of: Callable[[str], Path | None]
    ) -> None:
        """`streams`: all of the account, by name. `folder_of`: the folder of a stream's files."""
        self.streams = streams
        self.folder_of = folder_of
        self._copiers: dict[str, _Copier] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._saver: asyncio.Task[None] | None = None

    # --- streams come and go

    def attach(self, stream: Stream) -> None:
        """Begin to copy into a stream, if its configuration names origins; end what it had."""
        self.detach(stream.name)
        config = stream.config
        sources = config.sources if config.mirror is None else [config.mirror]
        if not sources:
            return
        folder = None
        if config.storage == "file" and config.mirror is None:
            folder = self.folder_of(stream.name)
        copier = _Copier(stream, None if folder is None else folder / SOURCES)
        if config.mirror is None:
            copier.read()
            copier.learn()
        for source in sources:
            patterns = [(each.src, each.dest) for each in source.subject_transforms]
            if source.filter_subject:
                patterns = [(source.filter_subject, "")]
            feed = Feed(stream, source.name, patterns, mirror=config.mirror is not None)
            copier.origins.append(_Origin(source, feed))
        self._copiers[stream.name] = copier
        for origin in copier.origins:
            self._connect(copier, origin)
        if self._saver is None:
            self._saver = asyncio.get_running_loop().create_task(self._save_again())

    def detach(self, name: str) -> None:
        """Copy nothing more into a stream."""
        copier = self._copiers.pop(name, None)
        if copier is not None:
            for origin in copier.origins:
                origin.feed.close()

    def appeared(self, stream: Stream) -> None:
        """A stream is there, from which others may copy."""
        for copier, origin in self._of(stream.name):
            if not origin.feed.connected:
                self._connect(copier, origin)

    def gone(self, name: str) -> None:
        """A stream is about to go."""
        for _, origin in self._of(name):
            origin.feed.disconnect()
            origin.problem = _MISSING
        self.detach(name)

    def close(self) -> None:
        """Copy nothing more."""
        for name in list(self._copiers):
            self.detach(name)
        for task in (*self._tasks, *([self._saver] if self._saver else [])):
            task.cancel()

    def _of(self, name: str) -> list[tuple[_Copier, _Origin]]:
        return [
            (copier, origin)
            for copier in self._copiers.values()
            for origin in copier.origins
            if origin.source.name == name
        ]

    def _connect(self, copier: _Copier, origin: _Origin) -> None:
        """Copy from the origin if it exists; else that is done when it appears."""
        stream = self.streams.get(origin.source.name)
        origin.problem = None
        if origin.source.external is not None:  # of an imported stream
            origin.problem = ApiErrorBody(code=500, description=_ELSEWHERE)
            return
        if stream is None:
            origin.problem = _MISSING
            return
        if stream.config.retention != "limits":
            origin.problem = ApiErrorBody(code=500, description=_NOT_COPIED)
            return
        start = copier.start_of(origin)
        source = origin.source
        if not start and source.opt_start_time:
            task = asyncio.ensure_future(self._connect_at(stream, origin))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        origin.feed.connect(stream.store, start or source.opt_start_seq or 1)

    async def _connect_at(self, stream: Stream, origin: _Origin) -> None:
        """Copy from a time on, which is searched in the files."""
        moment = time_ns(origin.source.opt_start_time)
        found = await asyncio.to_thread(TimeSearch(stream.store.log).find, moment)
        if not origin.feed.closed and self.streams.get(stream.name) is stream:
            origin.feed.connect(stream.store, max(1, found))

    # --- what was copied

    async def _save_again(self) -> None:
        """Once a second: note what was copied, and find the place again where something failed."""
        while True:
            await asyncio.sleep(limits.JS_SOURCES_SAVE_SECONDS)
            for copier in list(self._copiers.values()):
                try:
                    await self._save(copier)
                except OSError as problem:
                    log.warning("stream %r: %s", copier.stream.name, problem)

    async def _save(self, copier: _Copier) -> None:
        lost = [each for each in copier.origins if each.feed.lost and each.feed.connected]
        if lost and copier.stream.config.mirror is None:
            copier.learn()
        for origin in lost:
            origin.feed.resume(copier.start_of(origin) or origin.source.opt_start_seq or 1)
        if lost or copier.path is None:
            return
        seqs, to = copier.copied(), copier.stream.store.last_seq
        if seqs == copier.seqs:
            return
        await copier.stream.store.settle()
        if any(origin.feed.lost for origin in copier.origins):
            return
        page = {"to": to, "seqs": [[a, b.decode(), n] for (a, b), n in seqs.items()]}
        await asyncio.to_thread(save, copier.path, msgspec.json.encode(page))
        copier.seqs, copier.to = seqs, to

    # --- answers

    def infos(self, name: str) -> list[StreamSourceInfo]:
        """The progress of the mirror, or of the sources, of a stream."""
        copier = self._copiers.get(name)
        return [] if copier is None else [_info(origin) for origin in copier.origins]


def _info(origin: _Origin) -> StreamSourceInfo:
    source, feed = origin.source, origin.feed
    return StreamSourceInfo(
        name=source.name,
        lag=feed.lag,
        active=0 if feed.connected else -1,
        error=origin.problem if not feed.connected else None,
        filter_subject=source.filter_subject,
        subject_transforms=source.subject_transforms,
    )
