"""Changes of a stream's files that a worker makes."""

from typing import final

from broker.engine.log.segment import Segment
from broker.runtime.workers import JobOwner

@final
class Erasure(JobOwner): ...

@final
class Compaction(JobOwner):
    segment: Segment
    size: int
