"""Every page of the console in a real browser: contents, sizes, themes, keys, hostile texts."""

from __future__ import annotations

import gzip
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from browser.site import NO_OBJECTS, RUNS, Site, Visit

pytestmark = [pytest.mark.browser, pytest.mark.only_ours]

STREAM = "stream?account=%24G&stream"
PAGES = {
    "overview": "Messages per second",
    "topics": "orders",
    "topic?topic=orders": "billing",
    "topic?topic=orders&view=settings": "max_age",
    "topic?topic=ledger": "Subscriptions",
    "channel?topic=orders&channel=billing": "127.0.0.1",
    "dead-letters": "broken / worker",
    "dead-letters?topic=broken.dead": "Requeued by the consumer",
    "nats": "127.0.0.1",
    "nats?view=subscriptions": "prices.>",
    "nats?view=accounts": "$G",
    "nats?view=leafs": "No leaf nodes.",
    "jetstream": "EVENTS",
    f"{STREAM}=EVENTS": "events.1",
    f"{STREAM}=EVENTS&view=consumers": "indexer",
    f"{STREAM}=EVENTS&view=settings": "max_msgs_per_subject",
    f"{STREAM}=KV_settings": "color",
    f"{STREAM}=OBJ_files": "notes.txt",
    "publish?topic=orders": "Nothing is followed.",
    "readers": "There are no readers.",
    "configuration": "nsq.listen",
    "configuration?view=log": "Recent log lines",
}
MESSAGES = "topic?topic=orders&view=messages"
COLD_BYTES_MAX = 100_000
COLD_REQUESTS_MAX = 10
ONE_PAGE = 400  # nodes


def test_the_first_topic_is_a_link_away(browser: Any, tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as site, Visit(browser, site, "topics") as visit:
        visit.sees("or subscribes to it. Publish the first message.")
        visit.check()


@pytest.mark.parametrize("width", [320, 1280, 3840])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page(browser: Any, site: Site, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900}
    with Visit(browser, site, viewport=size, color_scheme=scheme) as visit:
        for path, text in PAGES.items():
            visit.go(path)
            visit.sees(text)
            visit.check()


def test_bodies_are_text(browser: Any, site: Site) -> None:
    """JSON, text and bytes of a message; what would run is shown and does not run."""
    with Visit(browser, site, MESSAGES) as visit:
        page = visit.page
        visit.sees(RUNS[:40])
        body = page.locator("pre.dump")
        visit.press("2")
        body.get_by_text("owned").wait_for()
        row = 'tr:has(button[aria-expanded="true"])'  # the message opens below its row
        assert page.locator(f"{row} + tr.detail pre.dump").count() == 1
        assert body.inner_text() == RUNS
        visit.press("1")
        body.get_by_text('"order": 17').wait_for()
        assert body.inner_text() == '{\n  "order": 17,\n  "paid": true\n}'
        visit.press("Hex")
        assert body.inner_text().startswith("00000000  7b 22 6f 72 64 65 72 22  3a")
        visit.press("3")
        body.get_by_text("00 ff fe 20").wait_for()
        with page.expect_download() as download:
            visit.press("Download")
        assert Path(download.value.path()).read_bytes() == b"\x00\xff\xfe not text"


def test_what_is_shown_is_copied(browser: Any, site: Site) -> None:
    allowed = ["clipboard-read", "clipboard-write"]
    with Visit(browser, site, MESSAGES, permissions=allowed) as visit:
        for message, copied in (
            ("1", '{"order": 17, "paid": true}'),
            ("3", "00000000  00 ff fe 20"),
        ):
            visit.press(message)
            visit.page.locator("tr.detail pre.dump").wait_for()
            visit.press("Copy")
            visit.notices("Copied.")
            assert visit.page.evaluate("navigator.clipboard.readText()").startswith(copied)
            visit.page.locator(".toasts").get_by_role("button", name="Close").first.click()


def test_messages_are_found_without_consuming(browser: Any, site: Site) -> None:
    with Visit(browser, site, "channel?topic=orders&channel=mail&view=messages") as visit:
        visit.page.get_by_role("button", name="4", exact=True).wait_for()
        visit.page.get_by_label("Body contains").fill("plain")
        visit.press("Look")
        visit.page.get_by_text("1 shown").wait_for()
        visit.sees("plain text")
        visit.go("topic?topic=orders")
        row = visit.page.get_by_role("row", name="mail")
        assert row.locator("td.num").first.inner_text() == "4"  # as many wait as before


@pytest.mark.parametrize(
    "path", ["topic?topic=broken.dead&view=messages", f"{STREAM}=EVENTS&view=messages"]
)
def test_messages_by_sequence_time_and_header(browser: Any, site: Site, path: str) -> None:
    header = "Twinwire-Reason" if path.startswith("topic") else "Origin"
    value = "requeue" if path.startswith("topic") else RUNS
    total = 2 if path.startswith("topic") else 4
    with Visit(browser, site, path) as visit:
        page = visit.page
        if not path.startswith("topic"):
            visit.press("Oldest first")

        def look(field: str, text: str, shown: int) -> None:
            page.get_by_label(field).fill(text)
            visit.press("Look")
            if shown:
                page.locator(".foot").get_by_text(re.compile(rf"^{shown} .*shown$")).wait_for()
            else:
                visit.sees("No messages here.")
            page.get_by_label(field).fill("")

        look("From sequence", "2", total - 1)
        look("From time", "2001-01-01T00:00:00", total)
        look("From time", "2100-01-01T00:00:00", 0)
        look("Header", header, total)
        look("Header", f"{header}: {value}", total)
        look("Header", f"{header}: another", 0)
        look("Header", "Missing", 0)


def test_a_message_opens_and_closes_in_place(browser: Any, site: Site) -> None:
    with Visit(browser, site, MESSAGES, viewport={"width": 320, "height": 900}) as visit:
        detail = visit.page.locator("tr.detail")
        visit.press("3")
        detail.locator("pre.dump.hex").wait_for()
        visit.check()
        visit.press("4")
        detail.get_by_text("plain text").wait_for()
        assert detail.count() == 1
        visit.press("4")
        detail.wait_for(state="detached")


def test_keys_of_a_bucket(browser: Any, site: Site) -> None:
    """Keys with their last values, the newest first; the history of one of them."""
    with Visit(browser, site, f"{STREAM}=KV_settings") as visit:
        page = visit.page
        page.get_by_text("3 keys shown").wait_for()
        keys = page.locator("tbody tr:not(.detail) th button")
        assert keys.all_inner_texts() == ["gone", "size", "color"]
        visit.sees("deleted")
        page.get_by_label("Filter by key").fill("COL")
        page.get_by_text("1 key shown").wait_for()
        visit.press("color")
        visit.press("History")
        page.get_by_text("2 values shown").wait_for()
        visit.sees("red")


def test_messages_of_a_stream(browser: Any, site: Site) -> None:
    with Visit(browser, site, f"{STREAM}=EVENTS") as visit:
        page = visit.page
        page.get_by_text("4 messages shown").wait_for()
        page.get_by_label("Subject").fill("events.1")
        visit.press("Look")
        page.get_by_text("2 messages shown").wait_for()
        visit.press("2")
        page.locator("pre.dump").get_by_text("owned").wait_for()
        visit.go(f"{STREAM}=EVENTS&view=consumers")
        row = page.get_by_role("row", name="indexer")
        assert row.locator("td.num").first.inner_text() == "4"  # as many wait as before
        visit.go(f"{STREAM}=EVENTS&view=settings")
        page.get_by_role("row", name="duplicate_window").get_by_text("2 min").wait_for()


def test_an_object_is_downloaded(browser: Any, site: Site) -> None:
    with Visit(browser, site, f"{STREAM}=OBJ_files") as visit:
        visit.press("notes.txt")
        with visit.page.expect_download() as download:
            visit.page.get_by_role("link", name="Download").click()
        assert Path(download.value.path()).read_bytes() == b"some text that is stored"


def test_what_is_no_object_is_shown_as_well(browser: Any, site: Site) -> None:
    with Visit(browser, site, f"{STREAM}=OBJ_files") as visit:
        for number, _ in enumerate(NO_OBJECTS):
            visit.press(f"$O.files.M.{number}")
            visit.page.get_by_role("heading", name=f"$O.files.M.{number}").wait_for()


def test_listeners_have_their_addresses(browser: Any, site: Site) -> None:
    with Visit(browser, site) as visit:
        for name, address in (("console", site.url.split("/")[2]), ("nats", "127.0.0.1:")):
            visit.page.get_by_role("row", name=re.compile(f"^{name} {address}")).wait_for()


def test_the_open_page_is_in_view_on_narrow_screens(browser: Any, site: Site) -> None:
    with Visit(browser, site, "configuration", viewport={"width": 320, "height": 600}) as visit:
        visit.title("Configuration")
        place = visit.page.locator('.nav a[aria-current="page"]').bounding_box()
        assert place is not None
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= 320


def test_an_unknown_page(browser: Any, site: Site) -> None:
    with Visit(browser, site, "nothing") as visit:
        visit.title("Page not found")


def test_hostile_names_in_addresses(browser: Any, site: Site) -> None:
    with Visit(browser, site) as visit:
        for path in (
            "topic?topic=",
            "channel?channel=c&topic=",
            "publish?topic=",
            "topics?filter=",
        ):
            visit.page.evaluate(
                "(at) => { location.hash = at[0] + encodeURIComponent(at[1]); }", [path, RUNS]
            )
            visit.page.wait_for_timeout(0)
            visit.page.get_by_role("main").get_by_role("heading", level=1).wait_for()
            visit.check()


def test_unknown_topics_are_said_so(browser: Any, site: Site) -> None:
    with Visit(browser, site, "topic?topic=missing") as visit:
        visit.page.get_by_role("alert").get_by_text("Cannot show the topic.").wait_for()


def test_filter_and_order_are_the_servers(browser: Any, site: Site) -> None:
    with Visit(browser, site, "topics") as visit:
        page = visit.page
        rows = page.locator("tbody th a")
        visit.sees("quiet")
        page.keyboard.press("/")
        page.keyboard.type("ord")
        page.get_by_text(re.compile("of 1 topic$")).wait_for()
        assert rows.all_inner_texts() == ["orders"]
        page.get_by_label("Filter by name").fill("")
        page.get_by_text("of 5 topics").wait_for()
        page.get_by_role("button", name="Depth").click()
        page.locator('[data-sort="-depth"]').wait_for()
        assert rows.first.inner_text() == "orders"
        page.get_by_label("Not empty only").check()
        page.get_by_text("of 5 topics").wait_for(state="detached")
        assert "quiet" not in rows.all_inner_texts()


def test_keys(browser: Any, site: Site) -> None:
    with Visit(browser, site) as visit:
        page = visit.page
        visit.sees("Messages per second")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.keyboard.press("?")
        page.locator("dialog[open]").get_by_text("Keyboard shortcuts").wait_for()
        page.keyboard.press("Escape")
        page.locator("dialog[open]").wait_for(state="detached")
        page.keyboard.press("g")
        page.keyboard.press("t")
        visit.title("Topics")
        visit.sees("orders")
        page.keyboard.press("j")
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.textContent") == "broken.dead"
        page.keyboard.press("Enter")
        visit.title("broken.dead")


def test_a_cold_start_is_small(browser: Any, site: Site) -> None:
    with Visit(browser, site) as visit:
        visit.sees("Messages per second")
        visit.page.locator(".chart canvas").first.wait_for()
        size = 0
        for request in visit.requests:
            if "/v1/events" not in request.url:
                size += len(gzip.compress(request.response().body()))
        assert len(visit.requests) <= COLD_REQUESTS_MAX, [one.url for one in visit.requests]
        assert size <= COLD_BYTES_MAX


def test_updates_do_not_grow_the_page(browser: Any, site: Site) -> None:
    """A live page replaces what it shows: many events later it has as many nodes."""
    with Visit(browser, site, "topics") as visit:
        visit.sees("orders")
        devtools = visit.context.new_cdp_session(visit.page)

        def nodes() -> int:
            devtools.send("HeapProfiler.collectGarbage")
            return int(devtools.send("Memory.getDOMCounters")["nodes"])

        def turn() -> None:
            for path, text in (
                ("overview", "Messages per second"),
                ("topics", "quiet"),
                ("topic?topic=orders", "billing"),
                ("nats", "127.0.0.1"),
            ):
                visit.go(path)
                visit.sees(text)

        turn()
        turn()
        before = nodes()
        for _ in range(20):
            turn()
        assert nodes() <= before + ONE_PAGE  # the browser may keep what was last shown


LEFT_OF_LINE = """() => {
    const canvas = document.querySelector('[aria-label="Depth and in flight"] canvas');
    const { data, width, height } = canvas.getContext('2d')
        .getImageData(0, 0, canvas.width, canvas.height);
    const isBlue = (at) => data[at + 3] > 200 && data[at + 2] > data[at] + 90;
    for (let x = 0; x < width; x++)
        for (let y = 0; y < height; y++) if (isBlue(4 * (y * width + x))) return x / width;
    return 1;
}"""


def test_charts_go_on_while_nothing_changes(browser: Any, site: Site) -> None:
    """Without an event the line stays at its last value, and does not stop."""
    with Visit(browser, site, "topics") as visit:
        page = visit.page
        page.clock.install()
        visit.go("topic?topic=orders")
        page.get_by_text("Live", exact=True).wait_for()
        page.locator('[aria-label="Depth and in flight"] canvas').wait_for()
        page.clock.run_for(1_000)
        assert 0.9 < page.evaluate(LEFT_OF_LINE) < 1
        page.clock.run_for(60_000)
        assert page.evaluate(LEFT_OF_LINE) < 0.5


@pytest.mark.parametrize("width", [600, 900, 1200, 1400, 2000])
def test_buttons_of_rows_are_in_the_window(browser: Any, site: Site, width: int) -> None:
    """Tables fit; where they cannot, they scroll and the buttons at the ends of rows stay."""
    with Visit(browser, site, viewport={"width": width, "height": 900}) as visit:
        for path, text in (
            (f"{STREAM}=EVENTS&view=consumers", "indexer"),
            (f"{STREAM}=KV_settings", "color"),
            ("jetstream", "EVENTS"),
            ("topics", "orders"),
            ("nats", "127.0.0.1"),
        ):
            visit.go(path)
            visit.sees(text)
            over = visit.page.evaluate(
                "[...document.querySelectorAll('.scroll')]"
                ".map((one) => one.scrollWidth - one.clientWidth)"
            )
            assert width == 900 or max(over) <= 0, path
            for button in visit.page.locator("tbody button").all():
                box = button.bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= width


def test_a_hidden_tab_is_not_live(browser: Any, site: Site) -> None:
    hide = """(hidden) => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    with Visit(browser, site, "topics") as visit:
        visit.page.get_by_text("Live", exact=True).wait_for()
        streams = [one for one in visit.requests if "/v1/events" in one.url]
        ended: list[Any] = []

        def end(request: Any) -> None:
            ended.append(request)

        visit.page.on("requestfailed", end)
        visit.page.on("requestfinished", end)
        visit.page.evaluate(hide, True)
        visit.page.get_by_text("Paused", exact=True).wait_for()
        visit.page.evaluate(hide, False)
        visit.page.get_by_text("Live", exact=True).wait_for()
        again = [one for one in visit.requests if "/v1/events" in one.url]
        assert (len(streams), len(again)) == (1, 2)
        assert streams[0] in ended
