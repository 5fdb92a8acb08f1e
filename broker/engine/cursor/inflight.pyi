"""Records of one cursor that are neither waiting in the log nor acked."""

from typing import final

@final
class Inflight:
    size: int
    sent: int
    deferred: int
    again: int
    def __init__(self) -> None: ...
