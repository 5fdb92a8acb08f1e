"""Bringing a log onto the disk: what waits for it shares a sync."""

from typing import final

from broker.core.jobs import JobOwner
from broker.core.log import Log

@final
class Round(JobOwner): ...

def sync_now(log: Log) -> None: ...
def durable_next(log: Log) -> int: ...
