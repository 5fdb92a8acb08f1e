"""/debug: where nsqd shows Go's profiles, what a Python process has in their place, as text."""

from __future__ import annotations

import asyncio
import cProfile
import ctypes
import gc
import io
import pstats
import re
import sys
import threading
import traceback
from collections import Counter
from typing import TYPE_CHECKING

from broker import errors_http, limits
from broker.protocols.nsq.http import ApiError, Route

if TYPE_CHECKING:
    from aiohttp import web

    from broker.protocols.nsq.http import Answer, Query, Routes

_GO_INT = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_PAGES = ("block", "cmdline", "goroutine", "heap", "profile", "symbol", "threadcreate")


def routes() -> Routes:
    """Path -> method -> what it does."""

    def get(handler: object) -> dict[str, Route]:
        return {"GET": Route(handler, versioned=False)}  # type: ignore[arg-type]

    return {
        "/debug/pprof/": get(_index),
        "/debug/pprof/cmdline": get(_cmdline),
        "/debug/pprof/symbol": {**get(_symbol), "POST": Route(_symbol, versioned=False)},
        "/debug/pprof/profile": get(_profile),
        "/debug/pprof/heap": get(_heap),
        "/debug/pprof/goroutine": get(_goroutine),
        "/debug/pprof/block": get(_block),
        "/debug/pprof/threadcreate": get(_threads),
        "/debug/setblockrate": {"PUT": Route(_set_block_rate, versioned=False)},
        "/debug/freememory": {"POST": Route(_free_memory, versioned=False)},
    }


async def _index(_request: web.Request, _query: Query) -> Answer:
    return "/debug/pprof/\n\n" + "".join(f"{page}\n" for page in _PAGES)


async def _cmdline(_request: web.Request, _query: Query) -> Answer:
    return "\0".join(sys.orig_argv)


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
    """How many objects of each type the garbage collector knows."""
    counts = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())
    lines = [f"{count:>10} {name}" for name, count in counts.most_common(limits.DEBUG_HEAP_TYPES)]
    head = f"allocated blocks: {sys.getallocatedblocks()}\nfrozen objects: {gc.get_freeze_count()}"
    return "\n".join([head, "", *lines, ""])


async def _block(_request: web.Request, _query: Query) -> Answer:
    return "not measured\n"


async def _threads(_request: web.Request, _query: Query) -> Answer:
    return "".join(f"{t.ident} {t.name}\n" for t in threading.enumerate())


async def _profile(_request: web.Request, query: Query) -> Answer:
    """What the loop did for some seconds (?seconds=N), by time spent."""
    text = query.get("seconds") or str(limits.DEBUG_PROFILE // limits.SECOND)
    if not _GO_INT.fullmatch(text) or not 0 < int(text) <= limits.DEBUG_PROFILE_MAX:
        raise ApiError(errors_http.NSQ_HTTP_SECONDS, text=errors_http.NSQ_HTTP_SECONDS.code)
    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError:
        error = errors_http.NSQ_HTTP_PROFILING
        raise ApiError(error, text=error.code) from None
    try:
        await asyncio.sleep(int(text))
    finally:
        profile.disable()
    page = io.StringIO()
    pstats.Stats(profile, stream=page).sort_stats("tottime").print_stats()
    return page.getvalue()


async def _set_block_rate(_request: web.Request, query: Query) -> Answer:
    """Checked as nsqd does; there is no such profile to set."""
    rate = query.get("rate") or ""
    if not _GO_INT.fullmatch(rate):
        cause = f'strconv.Atoi: parsing "{rate}": invalid syntax'
        text = errors_http.NSQ_HTTP_RATE.code.format(text=cause)
        raise ApiError(errors_http.NSQ_HTTP_RATE, text=text)
    return None


async def _free_memory(_request: web.Request, _query: Query) -> Answer:
    """Collect garbage and give free pages back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return None
