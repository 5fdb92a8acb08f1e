"""Notices a data folder that was removed, replaced or unmounted while the broker uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.server import limits

if TYPE_CHECKING:
    import asyncio
    import logging

    from broker.base.lockfile import DataLock
    from broker.engine.health import Health

PROBLEM: Final = "data folder"  # a kind of problem on /healthz
REASON: Final = (
    "it, or its lock file, was removed or replaced while in use: messages stored since then may be "
    "missing after the next start, and another broker could start on the same path"
)


class FolderCheck:
    """Checks periodically that the path of the data folder still leads to the locked folder.

    Open files keep working after their folder is removed or unmounted, so publishers would get
    their answers although nothing of it is found at the next start.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lock: DataLock,
        health: Health,
        log: logging.Logger,
    ) -> None:
        self._loop = loop
        self._lock = lock
        self._health = health
        self._log = log
        self._timer = loop.call_later(limits.FOLDER_PERIOD_S, self._run)

    def stop(self) -> None:
        """Stop checking."""
        self._timer.cancel()

    def _run(self) -> None:
        self.check()
        self._timer = self._loop.call_later(limits.FOLDER_PERIOD_S, self._run)

    def check(self) -> None:
        """Add the problem, or remove it if the folder is back; log each change."""
        folder = str(self._lock.path.parent)
        known = self._health.has(PROBLEM, folder)
        if self._lock.is_in_place():
            if known:
                self._health.remove(PROBLEM, folder)
                self._log.info("data folder %s is in its place again", folder)
        elif not known:
            self._health.add(PROBLEM, folder, REASON)
            self._log.error("data folder %s: %s", folder, REASON)
