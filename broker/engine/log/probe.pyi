"""Whether the disk takes writes again, asked without waiting for somebody to publish."""

from typing import final

from broker.runtime.workers import JobOwner

@final
class Probe(JobOwner): ...
