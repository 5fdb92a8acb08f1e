"""Who needs the files of a log: named readers and commits; the one farthest back counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.engine.log.holds import hold

if TYPE_CHECKING:
    from broker.engine.log.log import Log


class Keeping:
    """Who needs the files of which log, and from where on."""

    def __init__(self) -> None:
        self._wanted: dict[bytes, dict[object, int]] = {}

    def keep(self, log: Log, whose: object, seq: int | None) -> None:
        """Keep what reaches beyond seq; None: this one needs it no more.

        Of a log in memory nothing is kept: it may have to let records go to take others.
        """
        if log.folder is None:
            return
        wanted = self._wanted.setdefault(log.log_id, {})
        wanted.pop(whose, None)
        if seq is not None:
            wanted[whose] = seq
        if not wanted:
            del self._wanted[log.log_id]
        hold(log, min(wanted.values(), default=None))
