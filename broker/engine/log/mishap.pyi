"""What a log does when the disk fails it; nothing here is for Python."""

from typing import final

from broker.runtime.workers import JobOwner

@final
class Copy(JobOwner): ...
