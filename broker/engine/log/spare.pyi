"""Files of segments, made beforehand for logs that are synced all the time."""

from typing import final

from broker.runtime.workers import JobOwner

@final
class Spare(JobOwner): ...
