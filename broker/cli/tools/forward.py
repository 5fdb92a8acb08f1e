"""`twinwire forward`: sends what a topic gets elsewhere, as nsq_to_nsq and nsq_to_http do.

A message is finished when the other side has answered for it, and requeued otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import Any, Final

import click

from broker.cli.tools.forward_targets import HttpTarget, NatsTarget, Target, TopicTarget
from broker.cli.tools.topics import (
    ADDRESS,
    NAME,
    Ending,
    Source,
    nsq_options,
    run,
    source_options,
    take_source,
    tell,
)
from broker.client.nsq import Message, NsqError, Options, Reader

CONCURRENCY: Final = 100
HTTP_S: Final = 20.0


@dataclass(frozen=True)
class _Way:
    """The options that say where messages go."""

    destinations: tuple[str, ...]
    destination_topic: str | None
    mode: str | None
    producer: Options
    posts: tuple[str, ...]
    gets: tuple[str, ...]
    headers: dict[str, str]
    timeout_s: float
    nats: str | None
    subject: str | None
    concurrency: int

    def check(self) -> None:
        """UsageError if they do not fit together."""
        ways = [self.destinations, self.posts, self.gets, self.nats]
        if sum(map(bool, ways)) != 1:
            raise click.UsageError(
                "give one of --destination-nsqd-tcp-address, --post, --get and --nats"
            )
        modes = {"round-robin", "all"} if self.posts or self.gets else {"round-robin", "hostpool"}
        if self.mode is not None and (self.nats or self.mode not in modes):
            raise click.UsageError(f"--mode {self.mode} does not fit where messages go")
        if any("%s" not in url for url in self.gets):
            raise click.UsageError("--get needs a %s in the URL for the message")

    def target(self) -> Target:
        """Connects when it is used."""
        if self.destinations:
            mode = self.mode or "hostpool"
            return TopicTarget(self.destinations, self.destination_topic, mode, self.producer)
        if self.nats:
            return NatsTarget(self.nats, self.subject)
        http = HttpTarget(
            self.posts or self.gets,
            post=bool(self.posts),
            headers=self.headers,
            timeout_s=self.timeout_s,
            connections=self.concurrency,
        )
        http.every = self.mode == "all"
        return http


def _headers(lines: tuple[str, ...], content_type: str | None, posting: bool) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header {line!r} is not NAME: VALUE")
        headers[name.strip()] = value.strip()
    if content_type and not posting:
        raise click.UsageError("--content-type goes with --post")
    if posting:
        headers["Content-Type"] = content_type or "application/octet-stream"
    return headers


@click.command("forward")
@click.option("--topic", "topics", type=NAME, multiple=True, required=True, help="May be repeated.")
@click.option("--channel", type=NAME, default="forward", show_default=True)
@click.option("--destination-nsqd-tcp-address", "destinations", type=ADDRESS, multiple=True)
@click.option("--destination-topic", type=NAME, help="Otherwise the topic keeps its name.")
@click.option("--post", "posts", metavar="URL", multiple=True, help="The message as the body.")
@click.option("--get", "gets", metavar="URL", multiple=True, help="The message in place of %s.")
@click.option("--header", "header_lines", metavar="NAME: VALUE", multiple=True)
@click.option("--content-type", help="Of --post.  [default: application/octet-stream]")
@click.option(
    "--http-timeout", "timeout_s", type=click.FloatRange(0, min_open=True), default=HTTP_S
)
@click.option("--nats", type=ADDRESS, help="A NATS server to publish to.")
@click.option("--subject", help="For --nats; otherwise the topic's name.")
@click.option(
    "--mode",
    type=click.Choice(["round-robin", "hostpool", "all"]),
    help="With several destinations: strictly in turn; in turn among those that can be reached "
    "(nsqd's default); or each message to all (HTTP only).",
)
@click.option(
    "-n", "concurrency", type=click.IntRange(1), default=CONCURRENCY, show_default=True,
    help="Messages on their way at a time.",
)  # fmt: skip
@click.option("--sample", type=click.FloatRange(0, 1), default=1.0, help="Part that is sent on.")
@click.option(
    "--producer-opt", "producer", metavar="KEY=VALUE", multiple=True, callback=nsq_options
)
@source_options
def forward(
    topics: tuple[str, ...],
    channel: str,
    sample: float,
    header_lines: tuple[str, ...],
    content_type: str | None,
    **given: Any,
) -> None:
    """Send messages on, until interrupted.

    What is not taken is requeued, and repeated failure slows the reading down.
    """
    source = take_source(given)
    headers = _headers(header_lines, content_type, bool(given["posts"]))
    way = _Way(headers=headers, **given)
    way.check()
    run(lambda ending: _forward(source, topics, channel, way, sample, ending))


async def _forward(
    source: Source,
    topics: tuple[str, ...],
    channel: str,
    way: _Way,
    sample: float,
    ending: Ending,
) -> None:
    target = way.target()
    gate = asyncio.Semaphore(way.concurrency)

    async def send(message: Message) -> bool:
        if sample < 1 and random.random() >= sample:  # noqa: S311  a sample, not a secret
            return True
        async with gate:
            try:
                await target.send(message)
            except (NsqError, OSError) as error:
                tell(error)
                return False
        return True

    arguments = source.reader_arguments()
    readers = [Reader(topic, channel, send, max_attempts=0, **arguments) for topic in topics]
    try:
        async with contextlib.AsyncExitStack() as stack:
            for reader in readers:
                await stack.enter_async_context(reader)
            await ending.wait()
    finally:
        await target.close()
