"""Writes docs/operate/images/console-*.png: the web console with the traffic of a small shop.

    make images                                  # all of them, in two minutes
    .venv/bin/python tools/console_images.py overview topics

It starts a broker in a temporary folder, with clients of NSQ, NATS, NATS Streaming and JetStream,
opens each page in a tab of Chromium, and takes the images when the charts have enough points. It
needs Chromium on the path, Playwright and Pillow (`make images` installs these two).
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import random
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import aiohttp
import nats
from nats.js.api import ConsumerConfig
from support.servers.processes import Address
from support.stan.client import StanClient
from support.stan.wire import FIRST

from twinwire import bulk, nsq
from twinwire.testing import Broker

IMAGES = ROOT / "docs" / "operate" / "images"
PROGRAMS = ("chromium", "google-chrome")
SIZE = {"width": 1200, "height": 820}
COLORS = 128  # of an image: text stays sharp, and its file is a third as large
EXACT = 64  # of them are the most frequent ones, as they are: those of the areas
CHART_POINTS = 18  # of the overview, one each five seconds
TURN_S = 0.25
CONFIG: dict[str, dict[str, Any]] = {
    "server": {"name": "shop-1"},
    "stan": {"enabled": True},
    "jetstream": {"enabled": True},
}
FAILING = "payments"
CITIES = ("Lyon", "Porto", "Graz", "Turin", "Ghent", "Malmö")
GOODS = ("tea", "coffee", "honey", "cake", "jam", "rye bread")
TOPICS = {
    # name: messages per second, channels, those with a consumer
    "orders.eu": (36, ("billing", "warehouse"), ("billing", "warehouse")),
    "orders.us": (22, ("billing", "warehouse"), ("billing",)),
    "payments": (14, ("capture",), ("capture",)),
    "mails": (9, ("sender",), ("sender",)),
    "clicks": (90, ("reports", "search"), ("reports", "search")),
    "shipments": (5, ("labels",), ("labels",)),
}


class Image(NamedTuple):
    """A page, what is done on it before it is taken, and the colours of the system."""

    path: str
    act: Callable[[Any], Awaitable[None]] | None = None
    scheme: str = "light"
    first: Callable[[Any], Awaitable[None]] | None = None  # done as soon as the page is open


class Shop:
    """The traffic."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.random = random.Random(17)
        self.number = 0
        self.stan = StanClient(self, "bookkeeping")  # type: ignore[arg-type]

    @property
    def nats(self) -> Address:
        return Address.parse(self.broker.address("nats"))

    def order(self) -> bytes:
        """JSON as a shop would publish it."""
        self.number += 1
        goods = self.random.sample(GOODS, self.random.randint(1, 3))
        order = {
            "order": 70_000 + self.number,
            "city": self.random.choice(CITIES),
            "total": round(self.random.uniform(4, 240), 2),
            "items": goods,
        }
        return json.dumps(order, ensure_ascii=False).encode()

    async def run(self, stack: AsyncExitStack) -> None:
        """Create everything, then publish until cancelled."""
        writer = await stack.enter_async_context(nsq.Writer(self.broker.nsqd_tcp_address))
        await self.make_topics()
        for topic, (_, _, channels) in TOPICS.items():
            for channel in channels:
                await self.consume(stack, topic, channel)
        client = await nats.connect(self.broker.nats_url, name="shop")
        stack.push_async_callback(client.close)
        await self.subscribe(client)
        js = client.jetstream()
        await self.make_streams(js)
        self.ledger = self.stan.subscribe("ledger", durable="audit", start=FIRST)
        await self.register_reader()
        stack.callback(asyncio.create_task(self.publish(writer, client, js)).cancel)

    async def make_topics(self) -> None:
        async with aiohttp.ClientSession() as http:
            url = f"http://{self.broker.nsqd_http_address}"
            for topic, (_, channels, _) in TOPICS.items():
                await http.post(f"{url}/topic/create", params={"topic": topic})
                for channel in channels:
                    wanted = {"topic": topic, "channel": channel}
                    await http.post(f"{url}/channel/create", params=wanted)
            limit = {"topic": FAILING, "channel": "capture", "max_attempts": "2"}
            await http.post(f"{url}/v1/deadletters/set", params=limit)

    async def consume(self, stack: AsyncExitStack, topic: str, channel: str) -> None:
        def handle(message: nsq.Message) -> bool:
            if topic == FAILING and message.body.endswith(b'"honey"]}'):
                message.requeue(0, backoff=False)
            elif topic == FAILING and message.body.endswith(b'"tea", "jam"]}'):
                message.enable_async()  # and nothing: it times out
            return True

        await stack.enter_async_context(
            nsq.Reader(
                topic, channel, handle, nsqd_tcp_addresses=self.broker.nsqd_tcp_address,
                max_in_flight=16, options=nsq.Options(
                    client_id=f"{channel}-1", hostname="worker-1", msg_timeout_ms=2_000
                ),
            )
        )  # fmt: skip

    async def subscribe(self, client: Any) -> None:
        async def show(message: Any) -> None:
            pass

        await client.subscribe("prices.>", cb=show)
        await client.subscribe("jobs.resize", "workers", cb=show)

    async def make_streams(self, js: Any) -> None:
        await js.add_stream(
            name="EVENTS", subjects=["events.>"], description="What happens in the shop",
            max_age=7 * 86400,
        )  # fmt: skip
        await js.add_stream(name="SENSORS", subjects=["sensors.*.*"], max_msgs_per_subject=100)
        for name, subject in (("indexer", "events.>"), ("mailer", "events.customer.*")):
            wanted = ConsumerConfig(durable_name=name, filter_subject=subject, ack_wait=30)
            await js.add_consumer("EVENTS", wanted)
        self.indexer = await js.pull_subscribe_bind(durable="indexer", stream="EVENTS")
        bucket = await js.create_key_value(bucket="settings", history=5)
        changes = {
            "shop.currency": ["EUR"],
            "shop.free_delivery_from": ["40", "35", "50"],
            "search.index": ["goods-2026-11-20", "goods-2026-11-27"],
            "checkout.payment_methods": [
                '{"card": true, "invoice": false}', '{"card": true, "invoice": true}'
            ],
            "checkout.maintenance": ["on"],
        }  # fmt: skip
        for key, values in changes.items():
            for value in values:
                await bucket.put(key, value.encode())
        await bucket.delete("checkout.maintenance")
        store = await js.create_object_store("invoices")
        for number in range(3):
            await store.put(f"2026-11/{70_000 + number}.pdf", bytes(20_000 + 700 * number))

    async def register_reader(self) -> None:
        """As an archive job does."""

        def register() -> None:
            (connection,) = bulk.connect(self.broker.bulk_address)
            with connection:
                (found,) = (one for one in connection.topics().topics if one.name == "orders.eu")
                position = (found.first, found.incarnation)
                connection.put_reader("lake", {found.name: position}, 7 * 86400, hold=True)

        await asyncio.to_thread(register)

    async def publish(self, writer: Any, client: Any, js: Any) -> None:
        due = dict.fromkeys(TOPICS, 0.0)
        turn = 0
        while True:
            turn += 1
            swing = 1 + 0.3 * math.sin(turn / 30) + self.random.uniform(-0.1, 0.1)
            for topic, (per_second, _, _) in TOPICS.items():
                due[topic] += per_second * swing * TURN_S
                bodies = [self.order() for _ in range(int(due[topic]))]
                due[topic] -= len(bodies)
                if bodies:
                    await writer.multi_publish(topic, bodies)
            for coin in ("EUR", "USD", "CHF"):
                price = f"{self.random.uniform(0.9, 1.3):.4f}"
                await client.publish(f"prices.{coin}", price.encode())
            await client.publish("jobs.resize", b"image-%d.png" % turn)
            kinds = ("order.paid", "customer.joined", "order.sent")[: 1 + turn % 3]
            for kind in kinds:
                headers = {"Trace": f"{self.random.getrandbits(64):016x}", "Source": "web-2"}
                await js.publish(f"events.{kind}", self.order(), headers=headers)
            reading = f"{self.random.uniform(3, 8):.1f}".encode()
            await js.publish(f"sensors.cellar-{turn % 4}.temperature", reading)
            for message in await self.indexer.fetch(len(kinds)):
                await message.ack()
            self.stan.publish("ledger", self.order())
            if turn % 3:  # the rest waits: the page has a depth to show
                self.ledger.take(1, ack=True)
            await asyncio.sleep(TURN_S)


# --- what is done on the pages -------------------------------------------------------------------


async def open_third_message(page: Any) -> None:
    await page.locator("tbody th button").nth(2).click()
    await page.locator("pre.dump").wait_for()


async def open_key(page: Any) -> None:
    await page.get_by_role("button", name="checkout.payment_methods").click()
    await page.locator("pre.dump").wait_for()
    await page.evaluate("scrollBy(0, 200)")


async def choose_letters(page: Any) -> None:
    await page.get_by_role("button", name="Look again").click()
    await page.get_by_role("button", name="List the messages").first.click()
    choices = page.get_by_role("checkbox", name="Select message")
    await choices.nth(4).wait_for()
    for place in (1, 2, 4):
        await choices.nth(place).check()


async def look_at_new(page: Any) -> None:
    await page.get_by_role("button", name="Look", exact=True).click()
    await page.get_by_role("button", name="Look", exact=True).wait_for()
    await open_third_message(page)
    await page.evaluate("scrollBy(0, 500)")


async def start_tail(page: Any) -> None:
    await page.get_by_label("Body contains").fill("honey")
    await page.get_by_role("button", name="Start", exact=True).click()
    await page.get_by_label("Body", exact=True).fill('{"order": 1, "items": ["tea"]}')


def at(path: str, **parameters: str) -> str:
    return f"{path}?{urlencode(parameters)}" if parameters else path


STREAM = {"account": "$G", "stream": "EVENTS"}
PAGES = {
    "overview": Image("overview"),
    "topics": Image("topics", scheme="dark"),
    "messages": Image(
        at("channel", topic="orders.us", channel="warehouse", view="messages"), look_at_new
    ),
    "dead": Image(at("dead-letters", topic=f"{FAILING}.dead"), choose_letters),
    "tail": Image(at("publish", topic="orders.eu"), first=start_tail),
    "stream": Image(at("stream", view="consumers", **STREAM), scheme="dark"),
    "bucket": Image(at("stream", account="$G", stream="KV_settings"), open_key),
}


# --- the images ----------------------------------------------------------------------------------


def small(png: bytes) -> bytes:
    """The image with few colours, not dithered: the page has areas of one colour and text."""
    from PIL import Image as Pillow

    with Pillow.open(io.BytesIO(png)) as opened:
        image = opened.convert("RGB")
    colors = image.getcolors(image.width * image.height)
    assert colors is not None
    exact = [color for _, color in sorted(colors, reverse=True)[:EXACT]]
    rare = image.quantize(COLORS - EXACT, method=Pillow.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Pillow.new("P", (1, 1))
    palette.putpalette([part for color in exact for part in color] + rare)
    packed = image.quantize(palette=palette, dither=Pillow.Dither.NONE)
    out = io.BytesIO()
    packed.save(out, "PNG", optimize=True)
    return out.getvalue()


async def enough_points(url: str) -> None:
    """Wait until the charts of the overview are worth looking at."""
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{url}/v1/overview") as answer:
                points = len((await answer.json())["history"]["in_msgs"])
            if points >= CHART_POINTS:
                return
            await asyncio.sleep(1)


async def take(browser: Any, url: str, name: str, image: Image) -> tuple[Any, str, Image]:
    """Open the page in a tab."""
    context = await browser.new_context(base_url=url, viewport=SIZE, color_scheme=image.scheme)
    page = await context.new_page()
    await page.goto(f"/#{image.path}")
    await page.get_by_role("heading", level=1).wait_for()
    if image.first is not None:
        await image.first(page)
    return page, name, image


async def images(wanted: list[str]) -> None:
    from playwright.async_api import async_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        sys.exit(f"needs one of these on the path: {', '.join(PROGRAMS)}")
    async with Broker(CONFIG) as broker, async_playwright() as tools, AsyncExitStack() as stack:
        await Shop(broker).run(stack)
        browser = await tools.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tabs = [await take(browser, broker.console_url, name, PAGES[name]) for name in wanted]
        print(f"{len(tabs)} pages are open; waiting for the charts")
        await enough_points(broker.console_url)
        for page, name, image in tabs:
            if image.act is not None:
                await image.act(page)
            file = IMAGES / f"console-{name}.png"
            file.write_bytes(small(await page.screenshot()))
            print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")
        await browser.close()


def main(words: list[str]) -> None:
    if strange := [name for name in words if name not in PAGES]:
        sys.exit(f"unknown: {', '.join(strange)}; there are: {', '.join(PAGES)}")
    asyncio.run(images(words or list(PAGES)))


if __name__ == "__main__":
    main(sys.argv[1:])
