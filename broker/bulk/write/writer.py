"""One writer of the bulk door: what is remembered of it, and the commit that it is at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.bulk.write.batches import Batch
    from broker.bulk.write.intents import Done, Intent


class Writer:
    """One writer, while it is in use."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.done: dict[str, Done] = {}
        self.owner: str | None = None  # the name of the token that alone may use it
        self.remembered = False  # there is a file that says so
        self.loaded = False
        self.intent: Intent | None = None  # of a commit that is not finished
        self.unsaved = False  # it says more than its file
        self.broken: str | None = None  # why it cannot be
        self.batch: Batch | None = None  # what it appends
        self.retry: asyncio.TimerHandle | None = None
