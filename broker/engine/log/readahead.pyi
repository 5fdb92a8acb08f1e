"""Has what a reader of a log comes to next in memory before the loop reads it."""

from typing import final

from broker.runtime.workers import JobOwner

@final
class ReadAhead(JobOwner): ...
