"""The frame of a report, and the tables in it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from broker.spark.report.look import CSS
from broker.spark.report.markup import Child, Html, join, style, tag

# Nothing is fetched, nothing runs, whatever found its way in here.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, about: str, *body: Child, made: datetime | None = None) -> str:
    """A whole document."""
    at = made or datetime.now(UTC)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content="twinwire"),
        tag("title", title),
        style(CSS),
    )
    content = tag(
        "body",
        tag("header", tag("h1", title), tag("p", about, class_="soft")),
        tag("main", body),
        tag("footer", tag("p", f"Made by Twinwire, {at:%Y-%m-%d %H:%M} UTC", class_="soft")),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, content, lang='en')}\n"


def tiles(*pairs: tuple[str, str]) -> Html:
    """What is to be seen first: (value, what it is)."""
    return tag("ul", [tag("li", tag("b", value), name) for value, name in pairs], class_="tiles")


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[Child]], *, words: int = 1
) -> Html:
    """`words` columns from the left hold words, the others numbers."""
    columns = [
        tag("th", text, scope="col", class_="n" if i >= words else None)
        for i, text in enumerate(head)
    ]
    body = []
    for row in rows:
        cells = [tag("th", row[0], scope="row")]
        cells += [
            tag("td", cell, class_="n" if i >= words else "name")
            for i, cell in enumerate(row[1:], 1)
        ]
        body.append(tag("tr", cells))
    made = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", columns)), tag("tbody", body)
    )
    return tag("div", made, class_="wide")


def section(title: str, *body: Child) -> Html:
    return tag("section", tag("h2", title), join(*body))


def write(path: str | Path, text: str) -> Path:
    """A whole file or the one that was there before."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temp = target.with_name(f".{target.name}.tmp")
    temp.write_text(text, encoding="utf-8")
    return temp.replace(target)
