"""HTML that cannot be broken by what is put into it.

`tag` escapes its children and attributes unless they are Html, which only this module makes.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable
from typing import Final

VOID: Final = frozenset({"meta", "br", "hr", "link"})
# Control characters, and those that turn the direction of what follows: shown, not obeyed. A lone
# surrogate cannot be written at all.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff0-\uffff\ud800-\udfff]"
)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def visible(text: str) -> str:
    """With what cannot be seen or must not act written as an escape."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escape(text: str) -> Html:
    return Html(html.escape(visible(text), quote=True))


def tag(_name: str, *children: Child, **attributes: str | float | None) -> Html:
    """An element. `class_` is class; _ in names of attributes is -; None leaves one out."""
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
    """Some pieces one after the other."""
    return Html(_inner(children))


def style(css: str) -> Html:
    """A style sheet of ours: it must not need escapes."""
    assert not re.search("[<&]", css)
    return Html(f"<style>{css}</style>")


def clip(text: str, most: int) -> str:
    """At most so many characters, with a mark where something was cut off."""
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    while cut and unicodedata.combining(text[len(cut)]):
        cut = cut[:-1]
    return f"{cut}\N{HORIZONTAL ELLIPSIS}"
