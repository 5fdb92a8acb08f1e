"""Bringing a log onto the disk: what waits for it shares a sync."""

from typing import final

from broker.core.jobs import JobOwner

@final
class Round(JobOwner): ...
