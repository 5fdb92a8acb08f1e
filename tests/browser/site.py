"""A broker with a console and real traffic, and visits to it with a real browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import nats
from support import Broker, RawPeer, nats_peer, nsq_peer
from support.clients.peer import pack_frame
from support.stan.client import StanClient
from support.stan.wire import FIRST

# Some clients of a site are sockets that nobody reads from while a browser is at work: the broker
# must not expect answers from them.
CONFIG = """
[nats]
ping_interval = "1h"
[nsq]
max_heartbeat_interval = "1h"
[stan]
enabled = true
[[storage.topic]]
pattern = "broken"
max_attempts = 2
[console]
listen = "127.0.0.1:0"
"""
RUNS = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
OK = pack_frame("response", b"OK")
BODIES = (b'{"order": 17, "paid": true}', RUNS.encode(), b"\x00\xff\xfe not text", b"plain text")
# What the page must never cause, with everything that the browser reports of its policy.
WATCH = """
    window.reports = [];
    addEventListener('securitypolicyviolation', (event) => window.reports.push(
        event.violatedDirective + ' ' + event.blockedURI + ' ' + event.sourceFile));
"""

# What a client may store where an object store keeps the descriptions of its objects.
NO_OBJECTS = [
    b"null",
    b"[]",
    b'{"name": {}, "size": "x", "options": {"link": {"bucket": {"toString": 1}}}}',
    b'{"headers": 1, "metadata": {"a": {"toString": 1}}}',
]


class Site:
    """A broker whose console is open."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self.broker = Broker(folder, config)
        self.broker.start()
        ports = json.loads((folder / "ports.json").read_text())
        self.url = f"http://{ports['console']}/"
        self.open: list[RawPeer] = []

    def close(self) -> None:
        for peer in self.open:
            peer.close()
        self.broker.close()

    def publish(self, topic: str, *bodies: bytes, channels: tuple[str, ...] = ()) -> None:
        """Create the topic with these channels, then publish with NSQ."""
        for channel in channels:
            with nsq_peer(self.broker.nsq) as peer:
                peer.command(f"SUB {topic} {channel}")
                peer.expect(OK)
        with nsq_peer(self.broker.nsq) as peer:
            for body in bodies:
                peer.command(f"PUB {topic}", body)
                peer.expect(OK)

    def consume(self, topic: str, channel: str, ready: int) -> RawPeer:
        """A consumer that stays connected and answers nothing."""
        peer = nsq_peer(self.broker.nsq, {"heartbeat_interval": 3_600_000})
        self.open.append(peer)
        peer.command(f"SUB {topic} {channel}")
        peer.expect(OK)
        peer.command(f"RDY {ready}")
        return peer

    def fail(self, topic: str, channel: str, attempts: int) -> None:
        """Receive and requeue so often that the channel gives up the messages."""
        with nsq_peer(self.broker.nsq) as peer:
            peer.command(f"SUB {topic} {channel}")
            peer.expect(OK)
            for _ in range(attempts):
                peer.command("RDY 1")
                peer.command(f"REQ {peer.read_frame().message_id.decode()} 0")

    def traffic(self) -> None:
        """NSQ, NATS and NATS Streaming: topics, consumers, dead letters, subscriptions."""
        self.publish("orders", *BODIES, channels=("billing", "mail"))
        self.publish("quiet", channels=("nobody",))
        self.publish("broken", b"cannot be done", b"nor can this", channels=("worker",))
        self.consume("orders", "billing", 2).read_frame()
        self.fail("broken", "worker", 4)
        peer = nats_peer(self.broker.nats)
        self.open.append(peer)
        peer.send(b"SUB prices.> 1\r\nSUB jobs workers 2\r\nPUB prices.eur 4\r\n1.07\r\nPING\r\n")
        peer.expect(b"MSG prices.eur 1 4\r\n1.07\r\nPONG\r\n")
        with StanClient(self.broker) as stan:  # type: ignore[arg-type]
            stan.subscribe("ledger", durable="audit", start=FIRST)
            stan.publish("ledger", b"first", b"second", b"third")
        self.run(self.stream("EVENTS", "events.>", *BODIES, consumer="indexer"))
        self.run(self.buckets())

    @staticmethod
    def run(work: Coroutine[None, None, None]) -> None:
        """Await this in another thread: this one has the loop of the browser."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, work).result()

    async def stream(self, name: str, subject: str, *bodies: bytes, consumer: str) -> None:
        """A stream with messages and a consumer."""
        host, port = self.broker.nats
        client = await nats.connect(f"nats://{host}:{port}")
        js = client.jetstream()
        await js.add_stream(name=name, subjects=[subject], description=RUNS)
        for number, body in enumerate(bodies):
            to = subject.replace(">", str(number % 2))
            await js.publish(to, body, headers={"Origin": RUNS})
        await js.pull_subscribe(subject, durable=consumer)
        await client.close()

    async def buckets(self) -> None:
        """A bucket with a history, an object store."""
        host, port = self.broker.nats
        client = await nats.connect(f"nats://{host}:{port}")
        js = client.jetstream()
        bucket = await js.create_key_value(bucket="settings", history=4)
        for key, value in (("color", b"red"), ("color", b"blue"), ("size", RUNS.encode())):
            await bucket.put(key, value)
        await bucket.put("gone", b"soon")
        await bucket.delete("gone")
        store = await js.create_object_store("files")
        await store.put("notes.txt", b"some text that is stored")
        for number, body in enumerate(NO_OBJECTS):
            await js.publish(f"$O.files.M.{number}", body)
        await client.close()


class Visit:
    """A page of the console, and what happened on it."""

    def __init__(self, browser: Any, site: Site, path: str = "overview", **options: Any) -> None:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        self.context = browser.new_context(base_url=site.url, **options)
        self.context.add_init_script(WATCH)
        self.page = self.context.new_page()
        self.requests: list[Any] = []
        self.errors: list[str] = []
        self.page.on("request", self._asked)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._said)
        self.page.goto(f"/#{path}")

    def _asked(self, request: Any) -> None:
        self.requests.append(request)

    def _said(self, message: Any) -> None:
        # Answers that refuse are shown by the page; the browser notes them too.
        if message.type == "error" and "status of 4" not in message.text:
            self.errors.append(message.text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.context.close()

    @contextmanager
    def may_lose_connections(self) -> Iterator[None]:
        """What the browser notes of lost connections meanwhile is no fault of the page."""
        yield
        self.errors = [text for text in self.errors if "net::ERR_" not in text]

    def check(self) -> None:
        """No faults, nothing against the policy, nothing run, nothing wider than the window."""
        assert self.errors == []
        assert self.page.evaluate("window.reports") == []
        assert self.page.title() != "owned"
        assert self.page.locator("main img, main script").count() == 0
        over = "document.documentElement.scrollWidth - innerWidth"
        assert self.page.evaluate(over) <= 0
        assert all(
            request.url.startswith(("http://127.0.0.1", "blob:")) for request in self.requests
        )

    def go(self, path: str) -> None:
        """Open another page of the console by its address."""
        self.page.evaluate("(path) => { location.hash = path; }", path)

    def title(self, text: str) -> None:
        """Wait for the page with this heading."""
        self.page.get_by_role("heading", level=1, name=text, exact=True).wait_for()

    def sees(self, text: str) -> None:
        self.page.get_by_role("main").get_by_text(text).first.wait_for()

    def press(self, name: str) -> None:
        """Press the button of the page with this name."""
        place = self.page.get_by_role("main")
        place.get_by_role("button", name=name, exact=True).first.click()

    def answer(self, name: str) -> None:
        """Press the button of the dialog with this name."""
        self.page.locator("dialog[open]").get_by_role("button", name=name, exact=True).click()

    def notices(self, text: str) -> None:
        self.page.locator(".toasts").get_by_text(text).wait_for()

    def confirm(self, verb: str, typed: str = "") -> None:
        """Confirm the open dialog, after typing the name if it wants one."""
        if typed:
            button = self.page.locator("dialog[open]").get_by_role("button", name=verb, exact=True)
            assert button.is_disabled()
            self.page.locator("dialog[open] [data-typed]").fill(typed)
        self.answer(verb)
