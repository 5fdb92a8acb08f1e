"""The position of a cursor in the segments of its log."""

from typing import final

from broker.runtime.workers import JobOwner

@final
class Position(JobOwner): ...
