"""`twinwire sub`: prints the messages of topics, as nsq_tail does."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import click

from broker.cli.tools.topics import (
    NAME,
    Ending,
    Source,
    ephemeral_channel,
    run,
    source_options,
    take_source,
)
from broker.client.nsq import Message, Reader


@click.command("sub")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=NAME)
@click.option("--channel", type=NAME, help="Channel to read.  [default: a temporary one]")
@click.option("-n", "count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--print-topic", is_flag=True, help="Begin each line with the topic.")
@source_options
def sub(
    topics: tuple[str, ...],
    channel: str | None,
    count: int | None,
    print_topic: bool,
    **given: Any,
) -> None:
    """Print the messages of TOPIC, one per line, until interrupted.

    Without --channel a temporary channel is used, so no other channel misses a message. If it is
    the first channel of the topic, it gets the messages that wait there, and they go with it.
    """
    source = take_source(given)
    tail = _Tail(count, print_topic)
    run(lambda ending: tail.follow(source, topics, channel or ephemeral_channel(), ending))


class _Tail:
    """Prints messages and counts those left to print."""

    def __init__(self, count: int | None, print_topic: bool) -> None:
        self._left = count
        self._print_topic = print_topic
        self._readers: list[Reader] = []

    async def follow(
        self, source: Source, topics: tuple[str, ...], channel: str, ending: Ending
    ) -> None:
        def take(message: Message) -> None:
            self._take(message, ending)

        arguments = source.reader_arguments()
        readers = [Reader(t, channel, take, max_attempts=0, **arguments) for t in topics]
        self._readers = readers
        async with contextlib.AsyncExitStack() as stack:
            for reader in readers:
                await stack.enter_async_context(reader)
            await ending.wait()

    def _take(self, message: Message, ending: Ending) -> None:
        if ending.asked:
            self._requeue(message)
            return
        out = sys.stdout.buffer
        try:
            if self._print_topic:
                out.write(message.topic.encode() + b" | ")
            out.write(message.body + b"\n")
            out.flush()
        except BrokenPipeError:  # the reader of the pipe, such as `| head`, has ended
            self._requeue(message)
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            ending.stop()
            return
        except OSError as error:
            self._requeue(message)
            ending.fail(f"cannot print: {error}")
            return
        message.finish()
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                ending.stop()

    def _requeue(self, message: Message) -> None:
        """Pause the reader first; otherwise the requeued message would return at once."""
        for reader in self._readers:
            reader.change_max_in_flight(0)
        message.requeue(0, backoff=False)
