"""nats-py's flush, made to mean that everything before it has arrived.

The library writes the PING at once and what is pending after it: its PONG says nothing of a SUB
that was sent before the flush.
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client

_flush = Client.flush


async def _flush_in_order(self: Client, *arguments: Any, **more: Any) -> None:
    if self.is_connected:
        await self._flush_pending(force_flush=True)
    await _flush(self, *arguments, **more)


def mend_flush() -> None:
    """For all clients of this process."""
    Client.flush = _flush_in_order  # type: ignore[method-assign]
