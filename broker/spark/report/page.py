"""The HTML of a report: the document, sections, tables and escaping."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

VOID: Final = frozenset({"meta", "br", "hr", "link"})
# Control characters, those that change the direction of text, and lone surrogates, which cannot be
# written: all are shown as escapes.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff0-\uffff\ud800-\udfff]"
)


Child = str | Iterable["Child"] | None
CSS: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--line:#d1d9e0;--page:#fff;
--card:#f6f8fa;--a:#0969da;--b:#bc4c00;--c:#1a7f37;--d:#8250df;--bad:#b91c1c}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--page:#0d1117;
--card:#151b23;--a:#58a6ff;--b:#f0883e;--c:#3fb950;--d:#bc8cff;--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem;color:var(--ink);background:var(--page);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}h3{font-size:1rem;margin:0}
a{color:var(--a)}p{margin:.4rem 0}.soft{color:var(--soft)}.bad{color:var(--bad);font-weight:600}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.2rem 0;padding:0;list-style:none}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.6rem .9rem;
min-width:8.5rem}
.tiles b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem}
figcaption{font-weight:600;margin-bottom:.3rem}
svg{display:block;width:100%;height:auto;max-height:18rem}
.plots figure:last-child:nth-child(odd){grid-column:1/-1}
svg text{fill:var(--soft);font:14px system-ui,sans-serif}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.bar{fill:var(--a)}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.s0{stroke:var(--a)}.s1{stroke:var(--b);stroke-dasharray:6 3}
.s2{stroke:var(--c);stroke-dasharray:2 3}
.k0{fill:var(--a)}.k1{fill:var(--b)}.k2{fill:var(--c)}.dot{stroke:none}
.legend{display:flex;gap:1rem;font-size:.85rem;color:var(--soft)}
.legend svg{display:inline-block;width:1.6rem;height:.7rem;vertical-align:middle;
margin-right:.35rem}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
caption{text-align:left;color:var(--soft);padding:.2rem 0 .5rem}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{border-bottom:2px solid var(--line);white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th[scope=row]{font-weight:500;overflow-wrap:anywhere}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--soft)}
code,pre{font:13px/1.45 ui-monospace,monospace}
pre{background:var(--page);border:1px solid var(--line);border-radius:6px;padding:.6rem;
margin:.4rem 0;white-space:pre-wrap;overflow-wrap:anywhere;max-height:20rem;overflow:auto}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem;
margin:1rem 0}
.name{overflow-wrap:anywhere}td.name{min-width:7.5em}td.name a{white-space:nowrap}
footer{margin-top:3rem;border-top:1px solid var(--line);padding-top:.6rem}
@media print{body{max-width:none}details>*{display:block}pre{max-height:none}}
""".replace("\n", "")
# The page can load and run nothing, whatever its texts contain.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


def visible(text: str) -> str:
    """Text with invisible and control characters as escapes."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escape(text: str) -> Html:
    return Html(html.escape(visible(text), quote=True))


def tag(_name: str, *children: Child, **attributes: str | float | None) -> Html:
    """An element. `class_` is class; _ in attribute names becomes -; attributes that are None are
    omitted."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if _name in VOID:
        return Html(f"<{_name}{written}/>")
    return Html(f"<{_name}{written}>{_inner(children)}</{_name}>")


def _inner(children: Child) -> str:
    if children is None:
        return ""
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return escape(children)
    return "".join(map(_inner, children))


def join(*children: Child) -> Html:
    """Concatenate pieces."""
    return Html(_inner(children))


def style(css: str) -> Html:
    """A style sheet, which must not need escapes."""
    assert not re.search("[<&]", css)
    return Html(f"<style>{css}</style>")


def clip(text: str, most: int) -> str:
    """Text of at most `most` characters, with a mark if it was cut."""
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    while cut and unicodedata.combining(text[len(cut)]):
        cut = cut[:-1]
    return f"{cut}\N{HORIZONTAL ELLIPSIS}"


def page(title: str, about: str, *body: Child, created: datetime | None = None) -> str:
    """A whole document."""
    at = created or datetime.now(UTC)
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
    """The key figures at the top: (value, label)."""
    return tag("ul", [tag("li", tag("b", value), name) for value, name in pairs], class_="tiles")


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[Child]], *, words: int = 1
) -> Html:
    """A table. The first `words` columns are text, the others numbers."""
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
    created = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", columns)), tag("tbody", body)
    )
    return tag("div", created, class_="wide")


def section(title: str, *body: Child) -> Html:
    return tag("section", tag("h2", title), join(*body))


def write(path: str | Path, text: str) -> Path:
    """Write a file by rename, so that it is never incomplete."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temp = target.with_name(f".{target.name}.tmp")
    temp.write_text(text, encoding="utf-8")
    return temp.replace(target)
