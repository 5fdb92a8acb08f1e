"""Pages with long lists, whose entries are built while the page is written.

Ten thousand connections take some hundred milliseconds. The work is done in small parts with
turns of the loop between them, and each part is written before the next is built. The module also
compares the subjects that such pages filter by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.base.values import dataclass
from broker.protocols.nats.monitoring import limits
from broker.protocols.nats.monitoring.options import encode
from broker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_EMPTY: Final = b"[]\n}"  # the end of a page with an empty list


@dataclass(slots=True)
class LongPage:
    """A page with its list at the end; without a `key` it has no list."""

    head: dict[str, Any]  # all fields except the list, in order
    key: str  # of the list
    entries: Iterator[dict[str, Any]]

    def whole(self) -> dict[str, Any]:
        """The whole page at once."""
        return self.head | ({self.key: list(self.entries)} if self.key else {})

    async def parts(self) -> AsyncIterator[bytes]:
        """The JSON of the whole page, piece by piece."""
        begin = encode(self.head | ({self.key: []} if self.key else {}))
        made: list[dict[str, Any]] = []
        comma = b"["
        pauses = Pauses(limits.MONITOR_TURN)
        for entry in self.entries:
            made.append(entry)
            if pauses.is_step_over():
                yield begin.removesuffix(_EMPTY) + comma + _inner(made)
                begin, comma, made = b"", b",", []
                await pauses.pause()
        if made:
            yield begin.removesuffix(_EMPTY) + comma + _inner(made) + b"\n  ]\n}"
        else:
            yield begin or b"\n  ]\n}"


def _inner(entries: list[dict[str, Any]]) -> bytes:
    """The entries of a list, indented by one more level."""
    text = encode(entries)
    return text.removeprefix(b"[").removesuffix(b"\n]").replace(b"\n", b"\n  ")


def is_literal(subject: str) -> bool:
    """Whether a message can be published there: no empty token, no wildcard."""
    return all(token and token not in ("*", ">") for token in subject.split("."))
