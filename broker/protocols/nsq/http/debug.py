"""/debug: profiles of the process as text, under the paths of nsqd's Go profiles."""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import ctypes
import gc
import io
import ipaddress
import itertools
import pstats
import re
import sys
import threading
import traceback
from collections import Counter
from typing import TYPE_CHECKING

from broker.base.gotext import go_quote
from broker.base.redact import HIDDEN, redacted
from broker.base.units import SECOND
from broker.protocols.nsq import limits
from broker.protocols.nsq.http import errors
from broker.protocols.nsq.http.app import ApiError, Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web

    from broker.protocols.nsq.http.app import Answer, Handler, Query, Routes

_GO_INT = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_busy: list[None] = []  # expensive requests that run in this process
_PAGES = ("block", "cmdline", "goroutine", "heap", "profile", "symbol", "threadcreate")


def routes(peers: str) -> Routes:
    """Path -> method -> handler. `peers`: the clients allowed: "local", "all" or "none".

    Requests that block the loop for a while are POST, so that no link or image can send them.
    """

    def guarded(handler: Handler) -> Route:
        async def serve(request: web.Request, query: Query) -> Answer:
            if peers == "none" or (peers == "local" and not _is_local(request)):
                raise ApiError(errors.NSQ_HTTP_DEBUG)
            return await handler(request, query)

        return Route(serve, versioned=False)

    def get(handler: Handler) -> dict[str, Route]:
        return {"GET": guarded(handler)}

    def post(handler: Handler) -> dict[str, Route]:
        return {"POST": guarded(handler)}

    return {
        "/debug/pprof/": get(_index),
        "/debug/pprof/cmdline": get(_cmdline),
        "/debug/pprof/symbol": get(_symbol) | post(_symbol),
        "/debug/pprof/profile": post(_profile),
        "/debug/pprof/heap": post(_heap),
        "/debug/pprof/goroutine": get(_goroutine),
        "/debug/pprof/block": get(_block),
        "/debug/pprof/threadcreate": get(_threads),
        "/debug/setblockrate": {"PUT": guarded(_set_block_rate)},
        "/debug/freememory": post(_free_memory),
    }


def _is_local(request: web.Request) -> bool:
    peer = request.transport and request.transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return True  # a unix socket, or already closed
    return ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Run one expensive request at a time."""
    if _busy:
        error = errors.NSQ_HTTP_PROFILING
        raise ApiError(error, text=error.code)
    _busy.append(None)
    try:
        yield
    finally:
        _busy.pop()


async def _index(_request: web.Request, _query: Query) -> Answer:
    return "/debug/pprof/\n\n" + "".join(f"{page}\n" for page in _PAGES)


async def _cmdline(_request: web.Request, _query: Query) -> Answer:
    return "\0".join(map(redacted, _without_secrets(sys.orig_argv)))


def _without_secrets(words: list[str]) -> Iterator[str]:
    """Hide the second word of `--password x`, which `redacted` does not detect."""
    hide = False
    for word in words:
        yield HIDDEN if hide else word
        hide = redacted(f"{word.lstrip('-')}=x").endswith(HIDDEN) and "=" not in word


async def _symbol(_request: web.Request, _query: Query) -> Answer:
    return "num_symbols: 0\n"


async def _goroutine(_request: web.Request, _query: Query) -> Answer:
    """Stacks of all threads, then of all tasks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    page = io.StringIO()
    page.write(f"threads: {len(frames)}\n")
    for ident, frame in frames.items():
        page.write(f"\nthread {names.get(ident, ident)}\n")
        page.writelines(traceback.format_stack(frame))
    tasks = asyncio.all_tasks()
    page.write(f"\ntasks: {len(tasks)}\n")
    for task in tasks:
        page.write("\n")
        task.print_stack(file=page)
    return page.getvalue()


async def _heap(_request: web.Request, _query: Query) -> Answer:
    """The number of objects of each type that the garbage collector tracks."""
    with _alone():
        known = itertools.islice(gc.get_objects(), limits.DEBUG_HEAP_OBJECTS)
        counts = Counter(map(type, known))
    most = counts.most_common(limits.DEBUG_HEAP_TYPES)
    lines = [f"{count:>10} {kind.__module__}.{kind.__qualname__}" for kind, count in most]
    head = f"allocated blocks: {sys.getallocatedblocks()}\nfrozen objects: {gc.get_freeze_count()}"
    return "\n".join([head, "", *lines, ""])


async def _block(_request: web.Request, _query: Query) -> Answer:
    return "not measured\n"


async def _threads(_request: web.Request, _query: Query) -> Answer:
    return "".join(f"{t.ident} {t.name}\n" for t in threading.enumerate())


async def _profile(_request: web.Request, query: Query) -> Answer:
    """Profile the loop for some seconds (?seconds=N); functions by time spent."""
    text = query.get("seconds") or str(limits.DEBUG_PROFILE // SECOND)
    if not _GO_INT.fullmatch(text) or not 0 < int(text) <= limits.DEBUG_PROFILE_MAX:
        raise ApiError(errors.NSQ_HTTP_SECONDS, text=errors.NSQ_HTTP_SECONDS.code)
    profile = cProfile.Profile()
    with _alone():
        try:
            profile.enable()
        except ValueError:  # another profiler is active
            error = errors.NSQ_HTTP_PROFILING
            raise ApiError(error, text=error.code) from None
        try:
            await asyncio.sleep(int(text))
        finally:
            profile.disable()
    page = io.StringIO()
    pstats.Stats(profile, stream=page).sort_stats("tottime").print_stats()
    return page.getvalue()


async def _set_block_rate(_request: web.Request, query: Query) -> Answer:
    """Validate the rate as nsqd does; Python has no block profile to set it for."""
    rate = query.get("rate") or ""
    if not _GO_INT.fullmatch(rate):
        cause = f"strconv.Atoi: parsing {go_quote(rate)}: invalid syntax"
        text = errors.NSQ_HTTP_RATE.code.format(text=cause)
        raise ApiError(errors.NSQ_HTTP_RATE, text=text)
    return None


async def _free_memory(_request: web.Request, _query: Query) -> Answer:
    """Collect garbage and return free memory pages to the system."""
    with _alone():
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            await asyncio.to_thread(trim, 0)
    return None
