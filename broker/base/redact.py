"""Passwords, tokens and other secrets, hidden in every text that is logged or shown.

://user:password@     in URLs                       ://***@
secret=x, token=x     in queries and command lines  secret=***
Authorization: Bearer x                             Authorization: Bearer ***
"""

from __future__ import annotations

from typing import Final

from broker.base.patterns import lazy_pattern

HIDDEN: Final = "***"
# These run on texts of clients, in the event loop: each takes time linear in the text.
_IN_URL: Final = lazy_pattern(r"(://)[^\s/?#@\"'<>]+@")
_NAME: Final = lazy_pattern(r"(?<![\w-])([\w-]++)=")  # whole words only, and none of them twice
_SECRET: Final = lazy_pattern(
    r"(?i)secret|token|passw(?:or)?d|passphrase|credential|signature|api[_-]?key"
    r"|(?:\A|-)(?:pass|auth|sig|seed|jwt)\Z"
)
_VALUE: Final = lazy_pattern(r"[^\s&;\"'<>\\]+")
_HEADER: Final = lazy_pattern(
    r"(?i)(authorization['\"]?\s*[:=]\s*b?['\"]?(?:\w+\s+)?)[^\s'\",\\}]+"
)
_SCHEME: Final = lazy_pattern(r"(?i)\b(bearer|basic)(\s+)[\w.~+/=%:-]{12,}")


def redacted(text: str) -> str:
    """`text` with its secrets hidden."""
    text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    text = _without_values(text)
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    return _SCHEME.sub(rf"\1\2{HIDDEN}", text)


def _without_values(text: str) -> str:
    kept: list[str] = []
    end = 0
    for name in _NAME.finditer(text):
        if name.start() < end or not _SECRET.search(name[1]):
            continue
        value = _VALUE.match(text, name.end())
        if value is not None:
            kept += text[end : name.end()], HIDDEN
            end = value.end()
    return "".join((*kept, text[end:]))
