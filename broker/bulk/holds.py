"""The records that retention must keep for readers and commits.

This is a separate module because readers (`read/`) and commits (`write/`) share one RetentionHolds:
several of them may hold records of one log, and the lowest seq counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.engine.log.log import Log


class RetentionHolds:
    """For each log, by its id: the owners that hold records of it, and from which seq on."""

    def __init__(self) -> None:
        self._held: dict[bytes, dict[object, int]] = {}

    def hold(self, log: Log, owner: object, seq: int | None) -> None:
        """Keep the records from `seq` on for this owner; None ends its hold.

        A log in memory is never held: it must be able to drop records to accept new ones.
        """
        if log.folder is None:
            return
        held = self._held.setdefault(log.log_id, {})
        held.pop(owner, None)
        if seq is not None:
            held[owner] = seq
        if not held:
            del self._held[log.log_id]
        log.retention.retain_from(min(held.values(), default=None))
