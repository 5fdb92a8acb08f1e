"""Common parts of the tools that read NSQ topics: source options, signals, stopping."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import click
import uvloop

from broker.base.values import dataclass
from broker.client.nsq import NsqError, Options
from broker.client.nsq.options import parse_address, parse_options
from broker.server import limits

F = TypeVar("F", bound=Callable[..., Any])
MAX_IN_FLIGHT: Final = 200
EXIT_FAILED: Final = 1
# nsqd's rule for topic and channel names.
_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")
_NAME_CHARS_MAX: Final = 64


class _Name(click.ParamType[str]):
    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if len(value) > _NAME_CHARS_MAX or not _NAME.fullmatch(value):
            self.fail(
                f"invalid name {value!r}: expected at most 64 letters, digits, '.', '_' or '-'",
                param,
                ctx,
            )
        return str(value)


class _Address(click.ParamType[str]):
    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


NAME: Final = _Name()
ADDRESS: Final = _Address()


def nsq_options(
    context: click.Context, parameter: click.Parameter, words: Sequence[str]
) -> Options:
    """Callback of --consumer-opt and --producer-opt."""
    del context
    try:
        return parse_options(words)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from error


@dataclass(frozen=True)
class Source:
    """The source of messages."""

    nsqd: tuple[str, ...]
    lookupd: tuple[str, ...]
    max_in_flight: int
    options: Options

    def reader_arguments(self) -> dict[str, Any]:
        """Keyword arguments of a Reader."""
        return {
            "nsqd": self.nsqd,
            "lookupd": self.lookupd,
            "max_in_flight": self.max_in_flight,
            "options": self.options,
            "on_error": Complaints(),
        }


_SOURCE: Final = (
    click.option(
        "--nsqd-tcp-address",
        "nsqd",
        type=ADDRESS,
        multiple=True,
        help="nsqd to read from; may be repeated.",
    ),
    click.option(
        "--lookupd-http-address",
        "lookupd",
        metavar="HOST:PORT",
        multiple=True,
        help="nsqlookupd to find the nsqds of a topic; may be repeated.",
    ),
    click.option(
        "--max-in-flight",
        type=click.IntRange(1),
        default=MAX_IN_FLIGHT,
        show_default=True,
        help="Maximum number of messages in flight.",
    ),
    click.option(
        "--consumer-opt",
        "consumer",
        metavar="KEY=VALUE",
        multiple=True,
        callback=nsq_options,
        help="Setting of the connections, such as tls_v1, snappy, msg_timeout=2m; may be repeated.",
    ),
)


def source_options(command: F) -> F:
    """Add the options that `take_source` reads."""
    for option in reversed(_SOURCE):
        command = option(command)
    return command


def take_source(given: dict[str, Any]) -> Source:
    """Take the source's options out of a command's arguments."""
    source = Source(
        given.pop("nsqd"), given.pop("lookupd"), given.pop("max_in_flight"), given.pop("consumer")
    )
    if bool(source.nsqd) == bool(source.lookupd):
        raise click.UsageError("give --nsqd-tcp-address or --lookupd-http-address, and not both")
    return source


def ephemeral_channel() -> str:
    """The name of a new temporary channel."""
    return f"tail{random.randrange(1_000_000):06d}#ephemeral"  # noqa: S311


def print_error(error: object) -> None:
    """A line on stderr."""
    click.echo(f"twinwire: {error}", err=True)


class Complaints:
    """Prints errors after which a client tries again, each once until another one comes."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, error: object) -> None:
        """Print the error unless it was the last one."""
        if str(error) != self._last:
            self._last = str(error)
            print_error(f"{error}; trying again")


class Ending:
    """Stops a tool at a signal, at the end of its work, or at a failure."""

    def __init__(self) -> None:
        self.code = limits.EXIT_OK
        self._event = asyncio.Event()

    @property
    def asked(self) -> bool:
        """Whether the tool is to stop."""
        return self._event.is_set()

    def stop(self) -> None:
        """Stop with success."""
        self._event.set()

    def fail(self, why: object) -> None:
        """Stop with a failure: print the reason, exit with code 1."""
        if self.code == limits.EXIT_OK:
            self.code = EXIT_FAILED
            print_error(why)
        self._event.set()

    async def wait(self) -> None:
        """Wait until the tool is to stop."""
        await self._event.wait()

    async def during(self, work: Awaitable[Any]) -> bool:
        """Run `work` until it ends or the tool is to stop; return whether it ended. Raises its
        errors."""
        task = asyncio.ensure_future(work)
        waiting = asyncio.ensure_future(self.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait({task})
        return False


def run(main: Callable[[Ending], Coroutine[Any, Any, None]]) -> None:
    """Run a tool until it ends by itself, by SIGINT or by SIGTERM; exit with its code."""

    async def watched() -> int:
        ending = Ending()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.stop)
        try:
            await main(ending)
        except (NsqError, OSError) as error:
            ending.fail(error)
        return ending.code

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(watched())
    sys.exit(code)
