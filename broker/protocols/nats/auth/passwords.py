"""Passwords in a NATS configuration: plain text or bcrypt hashes.

A check of a hash takes tens of milliseconds, so a few threads do it, and the number of waiting
checks is limited. Results are not cached.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker.base.patterns import lazy_pattern
from broker.protocols.nats import limits

_HASH: Final = lazy_pattern(r"\$2[abxy]\$\d\d\$")
_PASSWORD_BYTES: Final = 72  # bcrypt ignores further bytes


class Busy(Exception):  # noqa: N818 - a state, not a fault
    """Too many checks are waiting."""


def is_hash(stored: str) -> bool:
    return _HASH.match(stored) is not None


def same(stored: str, given: str) -> bool:
    """Whether two secrets are equal, in a time independent of where they differ."""
    import hmac  # with OpenSSL's digests

    return hmac.compare_digest(_bytes(stored), _bytes(given))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _matches(stored: bytes, given: bytes) -> bool:
    try:
        import bcrypt  # imported on the checking thread

        return bcrypt.checkpw(given[:_PASSWORD_BYTES], stored)
    except ValueError:  # the stored value only looks like a hash
        return False


class Passwords:
    """Checks hashes, in threads."""

    def __init__(
        self,
        threads: int = limits.NATS_PASSWORD_THREADS,
        queue_max: int = limits.NATS_PASSWORD_QUEUE_MAX,
    ) -> None:
        self._threads = ThreadPoolExecutor(threads, "bcrypt")
        self._queue_max = queue_max
        self.waiting = 0  # including running checks

    async def matches(self, stored: str, given: str) -> bool:
        """Whether `stored` is a hash of `given`; raises Busy."""
        if self.waiting >= self._queue_max:
            raise Busy
        self.waiting += 1
        try:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, _matches, _bytes(stored), _bytes(given))
            work.add_done_callback(self._done)
        except BaseException:
            self.waiting -= 1
            raise
        return await work

    def _done(self, _work: asyncio.Future[bool]) -> None:
        self.waiting -= 1

    def close(self) -> None:
        """Stop the threads; waiting checks are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
