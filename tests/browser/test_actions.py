"""Every action of the console, with a real browser and a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.site import Site, Visit
from support import nats_peer

pytestmark = [pytest.mark.browser, pytest.mark.only_ours]


@pytest.fixture(scope="module")
def busy(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("busy"))
    try:
        yield found
    finally:
        found.close()


def depth(visit: Visit, number: str) -> None:
    """Wait until the tile of the depth shows this."""
    tile = visit.page.locator(".tile", has_text="Depth")
    tile.locator("dd").get_by_text(number, exact=True).wait_for()


def test_create_a_topic_and_a_channel(browser: Any, busy: Site) -> None:
    with Visit(browser, busy, "topics") as visit:
        visit.press("Create a topic")
        visit.page.get_by_role("textbox", name="Name", exact=True).fill("made")
        visit.answer("Create")
        visit.title("made")
        visit.sees("Nobody reads this topic.")
        visit.press("Create a channel")
        visit.page.get_by_role("textbox", name="Name", exact=True).fill("readers")
        visit.answer("Create")
        visit.page.get_by_role("link", name="readers", exact=True).click()
        visit.title("readers")


def test_pause_and_resume(browser: Any, busy: Site) -> None:
    busy.publish("paused", b"1", channels=("c",))
    with Visit(browser, busy) as visit:
        for path in ("topic?topic=paused", "channel?topic=paused&channel=c"):
            visit.go(path)
            visit.press("Pause")
            visit.confirm("Pause")
            visit.page.get_by_role("main").get_by_role("button", name="Resume").wait_for()
            visit.press("Resume")
            visit.confirm("Resume")
            visit.page.get_by_role("main").get_by_role("button", name="Pause").wait_for()


def test_rewind_skip_and_empty(browser: Any, busy: Site) -> None:
    busy.publish("moved", b"1", b"2", b"3", channels=("c",))
    with Visit(browser, busy, "channel?topic=moved&channel=c") as visit:
        depth(visit, "3")
        visit.press("Rewind or skip")
        visit.answer("A sequence")
        visit.page.get_by_label("Sequence").fill("3")
        visit.confirm("Move", typed="c")
        visit.notices("Moved to sequence 3")
        depth(visit, "1")
        visit.press("Rewind or skip")
        visit.answer("Now")
        visit.confirm("Move", typed="c")
        depth(visit, "0")
        busy.publish("moved", b"4")
        depth(visit, "1")
        visit.press("Empty")
        visit.confirm("Empty", typed="c")
        visit.notices("Emptied")
        depth(visit, "0")


def test_delete_wants_the_name(browser: Any, busy: Site) -> None:
    busy.publish("gone", b"1", channels=("c",))
    with Visit(browser, busy, "channel?topic=gone&channel=c") as visit:
        visit.press("Delete")
        visit.page.locator("dialog[open] [data-typed]").fill("another")
        button = visit.page.locator("dialog[open]").get_by_role("button", name="Delete")
        assert button.is_disabled()
        visit.confirm("Delete", typed="c")
        visit.title("gone")
        visit.sees("Nobody reads this topic.")
        visit.press("Delete")
        visit.confirm("Delete", typed="gone")
        visit.title("Topics")
        visit.notices("Deleted: the topic gone.")


def test_settings_of_a_topic(browser: Any, busy: Site) -> None:
    busy.publish("kept", b"1", channels=("c",))
    with Visit(browser, busy, "topic?topic=kept&view=settings") as visit:
        visit.press("Change")
        visit.page.locator("dialog[open]").get_by_label("max_msgs").fill("never")
        visit.answer("Save")
        visit.page.locator("dialog[open]").get_by_text("Nothing was changed.").wait_for()
        visit.page.locator("dialog[open]").get_by_label("max_msgs").fill("70000")
        visit.answer("Save")
        visit.notices("Saved the settings of kept.")
        row = visit.page.get_by_role("row", name="max_msgs")
        row.get_by_text("70000").wait_for()
        row.get_by_text("topic", exact=True).wait_for()


def test_dead_letters_go_back(browser: Any, busy: Site) -> None:
    busy.publish("failing", b"first", b"second", channels=("worker",))
    with Visit(browser, busy, "channel?topic=failing&channel=worker&view=letters") as visit:
        visit.press("Change")
        visit.page.locator("dialog[open]").get_by_label("Attempts").fill("1")
        visit.answer("Save")
        visit.notices("Saved the dead letter policy of worker.")
        busy.fail("failing", "worker", 2)
        visit.go("dead-letters")
        visit.page.get_by_role("link", name="failing.dead").first.click()
        visit.title("failing.dead")
        visit.sees("Requeued by the consumer")
        visit.press("Open the sample")
        visit.press("Send back this one")
        visit.confirm("Send back")
        visit.page.get_by_text("Sent back.").wait_for()
        visit.page.get_by_text("1 waiting").wait_for()
        visit.press("Send back all")
        visit.page.get_by_label("Messages per second").fill("50")
        visit.confirm("Send back")
        visit.sees("No dead letters wait here.")
        visit.go("channel?topic=failing&channel=worker")
        depth(visit, "2")


def test_chosen_dead_letters_go_back(browser: Any, busy: Site) -> None:
    """Messages of a group are listed, looked at and chosen one by one."""
    busy.publish("chosen", b"first", b"second", b"third", channels=("worker",))
    with Visit(browser, busy, "channel?topic=chosen&channel=worker&view=letters") as visit:
        page = visit.page
        visit.press("Change")
        page.locator("dialog[open]").get_by_label("Attempts").fill("1")
        visit.answer("Save")
        visit.notices("Saved the dead letter policy of worker.")
        busy.fail("chosen", "worker", 3)
        visit.go("dead-letters?topic=chosen.dead")
        page.get_by_text("3 waiting").wait_for()
        visit.press("List the messages")
        visit.press("2")
        page.locator("tr.detail pre.dump").get_by_text("second").wait_for()
        visit.press("2")
        page.get_by_label("Select message 1").check()
        page.get_by_label("Select message 3").check()
        visit.press("Send back selected (2)")
        visit.confirm("Send back")
        page.get_by_text("1 waiting").wait_for()
        page.get_by_label("Select message 3").wait_for(state="detached")
        visit.press("2")  # the list is still open
        page.locator("tr.detail pre.dump").get_by_text("second").wait_for()


def test_publish_and_tail(browser: Any, busy: Site) -> None:
    busy.publish("watched", b"before", channels=("c",))
    with Visit(browser, busy, "publish?topic=watched") as visit:
        page = visit.page
        page.get_by_label("Body contains").fill("wanted")
        visit.press("Start")
        page.get_by_text("Live", exact=True).wait_for()
        page.get_by_label("Body", exact=True).fill("something else")
        visit.press("Publish")
        visit.sees("Published.")
        page.get_by_label("Body", exact=True).fill('{"wanted": true}')
        visit.press("Publish")
        arrived = page.get_by_role("region", name="Messages that arrived")
        arrived.get_by_text('{"wanted": true}').wait_for()
        assert arrived.get_by_text("something else").count() == 0
        visit.press("Stop")


def test_publish_to_a_subject(browser: Any, busy: Site) -> None:
    with (
        nats_peer(busy.broker.nats) as peer,
        Visit(browser, busy, "publish?subject=live.a") as visit,
    ):
        peer.send(b"SUB live.* 1\r\nPING\r\n")
        peer.expect(b"PONG\r\n")
        visit.page.get_by_label("Body", exact=True).fill("over NATS")
        visit.press("Publish")
        peer.expect(b"MSG live.a 1 9\r\nover NATS\r\n")
        visit.sees("Published to 1 subscribers.")


def test_a_bucket_from_the_first_key_to_its_end(browser: Any, busy: Site) -> None:
    with Visit(browser, busy, "jetstream") as visit:
        page = visit.page
        visit.press("Create")
        visit.answer("A bucket")
        page.locator("dialog[open]").get_by_label("Name").fill("colors")
        page.get_by_label("Values kept of a key").fill("5")
        visit.answer("Create")
        visit.title("colors")
        visit.sees("The bucket is empty.")
        for value in ("red", "blue"):
            visit.press("Store a key" if value == "red" else "Change")
            if value == "red":
                page.get_by_label("Key", exact=True).fill("sky")
            page.locator("dialog[open]").get_by_label("Value").fill(value)
            visit.answer("Store")
            visit.sees(value)
            visit.press("sky")
            page.locator("pre.dump").get_by_text(value).wait_for()
        visit.press("Delete")  # the last one named so is the key's
        page.locator("dialog[open]").get_by_role("button", name="Cancel").click()
        page.locator("tr.detail").get_by_role("button", name="Delete").click()
        visit.confirm("Delete", typed="sky")
        visit.sees("deleted")
        visit.press("Delete")
        visit.confirm("Delete", typed="KV_colors")
        visit.title("JetStream")
        visit.notices("Deleted: KV_colors.")


def test_messages_and_consumers_of_a_stream(browser: Any, busy: Site) -> None:
    busy.run(busy.stream("WORK", "work.>", b"one", b"two", b"three", consumer="worker"))
    with Visit(browser, busy, "stream?account=%24G&stream=WORK") as visit:
        page = visit.page
        visit.press("2")
        page.locator("tr.detail").get_by_role("button", name="Delete").click()
        visit.confirm("Delete")
        page.get_by_text("2 messages shown").wait_for()
        visit.press("Delete messages")
        page.get_by_label("All but the newest").fill("1")
        visit.confirm("Delete messages", typed="WORK")
        visit.notices("Deleted: 1 message.")
        visit.press("Consumers")
        visit.press("Pause")
        page.get_by_label("Until").fill("2100-01-01T00:00:00")
        visit.confirm("Pause")
        visit.sees("paused")
        visit.press("Resume")
        visit.confirm("Resume")
        page.get_by_role("row", name="worker").get_by_role("button", name="Delete").click()
        visit.confirm("Delete", typed="worker")
        visit.sees("There are no consumers.")
        visit.press("Settings")
        visit.press("Change")
        page.get_by_label("Changes").fill('{"max_msgs": 17}')
        visit.answer("Save")
        page.get_by_role("row", name="max_msgs").first.get_by_text("17").wait_for()


def test_one_who_may_only_look(browser: Any, tmp_path: Path) -> None:
    site = Site(tmp_path / "site", '[console]\nlisten = "127.0.0.1:0"\nread_only = true\n')
    try:
        site.publish("orders", b"1", channels=("c",))
        with Visit(browser, site, "topic?topic=orders") as visit:
            visit.sees("Channels")
            visit.page.get_by_role("link", name="c", exact=True).wait_for()
            for name in ("Pause", "Empty", "Delete", "Create a channel"):
                assert visit.page.get_by_role("button", name=name).count() == 0
            visit.go("publish")
            visit.sees("Publishing needs the role operator")
    finally:
        site.close()


def test_a_page_outlives_a_restart_of_the_broker(browser: Any, tmp_path: Path) -> None:
    """Open pages say that the broker is gone, and go on when it is back."""
    site = Site(tmp_path / "site")
    try:
        site.publish("orders", b"1", channels=("c",))
        with Visit(browser, site, "topic?topic=orders") as visit, visit.may_lose_connections():
            visit.page.get_by_text("Live", exact=True).wait_for()
            site.broker.stop()
            visit.page.get_by_text("No connection", exact=True).wait_for()
            visit.sees("Channels")  # what was known stays
            visit.press("Pause")
            visit.answer("Pause")
            visit.page.locator("dialog[open]").get_by_text("The broker does not answer.").wait_for()
            visit.answer("Cancel")
            site.broker.start()
            visit.page.get_by_text("Live", exact=True).wait_for()
            site.publish("orders", b"2")
            depth(visit, "2")
    finally:
        site.close()
