"""The reports in a real browser: nothing runs, nothing is fetched, all of it can be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import chromium
from support.reports import HOSTILE, START, channel_row, shown, topic_row

from broker.spark.report.page import write
from broker.spark.rollup.page import rollup_page
from broker.spark.triage.page import triage_page
from broker.spark.triage.tasks import Found, Group, Key, Sample

pytestmark = pytest.mark.browser
RUNS = (
    "<script>document.title = 'owned'</script><img src='https://example.com/x' onerror='alert(1)'>"
)
HOUR_US = 3600 * 10**6
SIZES = (360, 1200)  # of a telephone, of a screen
SEEN = """() => ({
    scripts: document.querySelectorAll('script, img, iframe, object').length,
    over: document.documentElement.scrollWidth - innerWidth,
    plots: [...document.querySelectorAll('svg')].map((e) => e.getBoundingClientRect())
        .map((box) => [box.left, box.right, box.height]),
    unnamed: [...document.querySelectorAll('svg[role=img]')]
        .filter((e) => !e.querySelector('title').textContent).length,
})"""


class Visit:
    """A page, and what happened on it."""

    def __init__(self, browser: Any, path: Path, width: int = 1200) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 800})
        self.dialogs: list[str] = []
        self.fetched: list[str] = []
        self.errors: list[str] = []
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(path.as_uri())
        self.path = path

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def check(self, title: str) -> dict[str, Any]:
        """Nothing but the page itself."""
        for details in self.page.query_selector_all("details > summary"):
            details.click()
        seen: dict[str, Any] = self.page.evaluate(SEEN)
        assert (self.page.title(), self.dialogs, self.errors) == (title, [], [])
        assert self.fetched == [self.path.as_uri()]
        assert (seen["scripts"], seen["unnamed"]) == (0, 0)
        assert seen["over"] <= 0  # tables scroll in their own place
        return seen


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def rollup() -> str:
    names = [*HOSTILE, RUNS]
    topics = [topic_row(name, hour, 10, 1 + 12 * hour) for name in names for hour in range(30)]
    channels = [channel_row(name, name, hour) for name in names for hour in range(30)]
    holes = [{"topic": RUNS, "partition": 0, "first": 3, "next": 9, "reason": RUNS}]
    return rollup_page(shown(topics, channels, holes=holes, foreign=2))


def triage() -> str:
    found = Found(hours={START // HOUR_US + n: n for n in range(40)}, holes=3)
    for n, text in enumerate([*HOSTILE, RUNS]):
        for topic in ("orders.dead", text):
            body = text.encode("utf-8", "surrogatepass")
            group = found.groups[Key(topic, text, text, text, text)] = Group()
            group.take(Sample(0, n + 1, START, 5, START, len(body), body))
    return triage_page(found, RUNS)


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize(("title", "made"), [("Rollup", rollup), ("Dead letters", triage)])
def test_hostile_names_and_bodies(
    browser: Any, tmp_path: Path, title: str, made: Any, width: int
) -> None:
    visit = Visit(browser, write(tmp_path / "report.html", made()), width)
    seen = visit.check(title)
    assert len(seen["plots"]) >= 2
    for left, right, height in seen["plots"]:
        assert 0 <= left < right
        assert height > 5
    text = visit.page.inner_text("body")
    assert "document.title = 'owned'" in text
    if title == "Dead letters":  # in a shell too
        assert f"--topics '{HOSTILE[0]}' --requeue" in text
        assert text.count("--topics") == len(HOSTILE) + 1  # where the pattern does not find it
    visit.page.close()


@pytest.mark.parametrize("made", [rollup, triage])
def test_what_would_get_in_would_not_run(browser: Any, tmp_path: Path, made: Any) -> None:
    """The second line: if a name were not escaped, the page's own policy stops it."""
    path = write(tmp_path / "report.html", made().replace("</main>", RUNS + "</main>"))
    visit = Visit(browser, path)
    assert visit.page.title() != "owned"
    assert visit.dialogs == []
    assert any("Content Security Policy" in text for text in visit.errors)
    with pytest.raises(AssertionError):
        visit.check(visit.page.title())
    visit.page.close()
