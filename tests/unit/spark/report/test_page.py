"""Reports: pages that others' names and bodies cannot break, plots that say what they show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reports import HOSTILE, HOUR, START, channel_row, shown, topic_row

from broker.spark.report import charts, numbers, page
from broker.spark.report.charts import Plot, Series
from broker.spark.report.page import clip, escape, tag, visible
from broker.spark.rollup.page import missing, rollup_page
from broker.spark.triage.page import body_text, triage_page
from broker.spark.triage.tasks import Found, Group, Key, Sample

SVG = "{http://www.w3.org/2000/svg}"


def parse(text: str) -> ET.Element:
    """A page is XML too: what breaks out of its place breaks that."""
    kind, _, rest = text.partition("\n")
    assert kind == "<!DOCTYPE html>"
    return ET.fromstring(rest)


def said(root: ET.Element) -> str:
    return "\n".join(root.itertext())


ELEMENTS = (
    "html head meta title style body header main footer section article div p span ul li b a "
    "h1 h2 h3 figure figcaption details summary table caption thead tbody tr th td code pre "
    "svg desc line text rect polyline circle"
)


def check_safe(root: ET.Element) -> None:
    """Nothing runs, nothing is fetched, ids are unique and what refers to one finds it."""
    allowed = frozenset(ELEMENTS.split())
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        assert element.tag.removeprefix(SVG) in allowed
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            if name == "href":
                assert value.startswith("#")
                assert value[1:] in ids
            if name == "aria-labelledby":
                assert set(value.split()) <= set(ids)
            assert name not in ("src", "srcset", "action")
    metas = {e.get("http-equiv"): e.get("content") for e in root.iter("meta")}
    assert metas["Content-Security-Policy"].startswith("default-src 'none'")


def texts(text: str) -> Iterator[str]:
    """Beginnings of what is left of a text when it is shown."""
    yield visible(text)[:20]


TEXT = st.text(st.characters(), max_size=30)


@given(TEXT, TEXT, TEXT)
def test_text_stays_text(text: str, value: str, other: str) -> None:
    made = tag("p", text, tag("b", other), title=value)
    root = ET.fromstring(made)
    same = re.compile(r"\s+")
    assert same.sub("", root.text or "") == same.sub("", visible(text))
    assert same.sub("", root[0].text or "") == same.sub("", visible(other))
    assert same.sub(" ", root.get("title") or "") == same.sub(" ", visible(value))


def test_what_cannot_be_seen_is_shown() -> None:
    assert visible("a\u202eb\x1b") == "a\\u202eb\\u001b"
    assert escape("<&\"'>") == "&lt;&amp;&quot;&#x27;&gt;"
    assert clip("abcdef", 4) == "abc\N{HORIZONTAL ELLIPSIS}"


def test_a_rollup_with_hostile_names() -> None:
    topics = [topic_row(name, hour, 10, 1 + 10 * hour) for name in HOSTILE for hour in range(3)]
    channels = [channel_row(name, name, 1) for name in HOSTILE]
    holes = [{"topic": HOSTILE[0], "partition": 0, "first": 3, "next": 9, "reason": HOSTILE[1]}]
    root = parse(rollup_page(shown(topics, channels, holes=holes, foreign=2)))
    check_safe(root)
    text = said(root)
    for name in HOSTILE:
        for part in texts(name):
            assert part.split("\r")[0] in text


def test_what_a_rollup_shows() -> None:
    topics = [topic_row("orders", 0, 100, 1), topic_row("orders", 1, 50, 111, holes=0)]
    lost = channel_row("", "", 1, acked=0, dead=0, lost=7, latencies={}, attempts={})
    root = parse(rollup_page(shown(topics, [channel_row("orders", "ch", 0), lost])))
    tiles = {li[0].tail: li[0].text for li in root.iter("li")}
    assert tiles["records"] == "150"
    assert tiles["seqs missing"] == "10"
    assert tiles["acked"] == "90"
    assert tiles["dead letters"] == "10 %"
    assert tiles["publish to ack, p99"] == "1.07 ms"
    assert "7 events were not written" in said(root)
    assert "101 - 110" in said(root)


def test_groups_of_dead_letters_have_different_labels() -> None:
    """Groups often differ in nothing but the shape of their bodies."""
    found = Found(hours={START // HOUR: 3})
    for shape in ("empty", "text", "JSON"):
        group = found.groups[Key("orders.dead", "requeue", "orders", "billing", shape)] = Group()
        group.take(Sample(0, 1, START, 5, START, 1, b"x"))
    root = parse(triage_page(found, "a:1"))
    check_safe(root)
    ids = [key.id for key in found.groups]
    (ranks,) = [svg for svg in root.iter(f"{SVG}svg") if svg[0].text == "Largest groups"]
    labels = [e.text or "" for e in ranks.iter(f"{SVG}text") if e.get("text-anchor") == "end"]
    assert sorted(label.split(":")[0] for label in labels) == sorted(ids)
    headings = ["".join(h.itertext()) for h in root.iter("h3")]
    assert sorted(headings) == sorted(f"{one} requeue: orders / billing" for one in ids)


def test_a_single_value_is_a_bar_and_two_rings() -> None:
    plot = Plot("k", "A title", "What it shows.", numbers.count)
    (bar,) = ET.fromstring(charts.bars(plot, ["1"], [5.0])).iter(f"{SVG}rect")
    assert float(bar.get("width", "")) < charts.WIDTH / 8
    both = charts.lines(plot, ["1"], [Series("p50", [5.0]), Series("p99", [5.0])])
    radii = [float(dot.get("r", "")) for dot in ET.fromstring(both).iter(f"{SVG}circle")]
    assert radii == sorted(radii, reverse=True)
    assert len(set(radii)) == len(radii)


def test_a_rollup_of_nothing() -> None:
    root = parse(rollup_page(shown([], [], has_events=False)))
    check_safe(root)
    assert "--events" in said(root)


def test_holes_between_windows() -> None:
    rows = [
        topic_row("a", 0, 10, 1),
        topic_row("a", 1, 10, 11),
        topic_row("a", 2, 8, 26, holes=2, last=35),
        topic_row("a", 3, 10, 40, state="open"),
        # behind one that was not over: nobody knows yet
        topic_row("a", 4, 10, 90, state="open, cut"),
        topic_row("b", 0, 10, 500),  # where it began is no hole
        topic_row("b", 1, 10, 5, incarnation="cd"),
    ]
    found = [(one.topic, one.first, one.next, one.lost) for one in missing(rows)]
    assert found == [("a", 21, 26, 5), ("a", 26, 36, 2), ("a", 36, 40, 4)]


@given(
    st.lists(st.floats(0, 1e15), max_size=900),
    st.lists(st.none() | st.floats(0, 1e12), max_size=900),
)
def test_any_plot(values: list[float], holes: list[float | None]) -> None:
    plot = Plot("k", "A title", "What it shows.", numbers.count)
    made = [
        charts.bars(plot, [str(i) for i in range(len(values))], values),
        charts.bars(plot, [str(i) for i in range(len(values))], values, logarithmic=True),
        charts.lines(plot, [str(i) for i in range(len(holes))], [Series("one", holes)]),
        charts.ranks(plot, [(str(i), value) for i, value in enumerate(values[:20])]),
    ]
    for text in made:
        root = ET.fromstring(text)
        (svg,) = root.findall(f"{SVG}svg")
        assert svg.get("role") == "img"
        assert [svg[0].text, svg[1].text] == ["A title", "What it shows."]
        assert len(root.findall(f"{SVG}svg/{SVG}rect")) <= charts.POINTS_MAX
        for element in svg.iter():
            for name in ("x", "y", "width", "height", "cx", "cy", "x1", "y1"):
                number = float(element.get(name) or 0)
                assert -1 <= number <= 660, (name, number)


@given(st.lists(st.none() | st.floats(0, 1e9), min_size=1, max_size=3000))
def test_what_sticks_out_is_drawn(values: list[float | None]) -> None:
    drawn = charts.downsample(values)
    assert len(drawn) <= charts.POINTS_MAX
    assert max((v for v in drawn if v is not None), default=None) == max(
        (v for v in values if v is not None), default=None
    )


@given(st.just(0.0) | st.floats(1e-9, 1e30), st.booleans())
def test_the_top_of_an_axis(value: float, binary: bool) -> None:
    top = charts.nice_top(value, binary=binary)
    assert value <= top
    assert top <= max(1.0, 2.6 * value)


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (numbers.count, 1234567, "1.23 M"), (numbers.count, 12, "12"),
        (numbers.size, 1536, "1.5 KiB"), (numbers.size, 12, "12 B"),
        (numbers.duration, 1_500_000, "1.5 ms"), (numbers.duration, 3600e9, "1 h"),
        (numbers.share, 0.0, "0 %"), (numbers.share, 0.123, "12.3 %"),
        (numbers.share, 1e-9, "< 0.001 %"), (numbers.exact, 1234567, "1,234,567"),
    ],
)  # fmt: skip
def test_numbers(show: Any, value: float, text: str) -> None:
    assert show(value) == text


def test_one_and_many() -> None:
    assert [numbers.of(n, "topic") for n in (0, 1, 1234)] == ["0 topics", "1 topic", "1,234 topics"]


@pytest.mark.parametrize(
    ("body", "cut", "text"),
    [
        (b"plain", False, "plain"),
        (b'{"b":[1]}', False, '{\n  "b": [\n    1\n  ]\n}'),
        (b'{"b":[1', True, '{"b":[1'),
        ("aé".encode()[:2], True, "a"),
        (b"\xff\x00A", False, "0000  ff 00 41" + " " * 41 + "..A"),
        (b"", False, ""),
    ],
)
def test_bodies_for_people(body: bytes, cut: bool, text: str) -> None:
    assert body_text(body, cut) == text


@given(st.binary(max_size=600), st.booleans())
def test_any_body(body: bytes, cut: bool) -> None:
    assert len(body_text(body, cut)) <= 4096


def test_a_page_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = page.write(tmp_path / "deep" / "r.html", "one")
    page.write(path, "two")
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]
    assert path.read_text() == "two"
    made = page.page("T", "about", created=datetime(2026, 11, 21, tzinfo=UTC))
    assert "2026-11-21 00:00 UTC" in said(parse(made))
