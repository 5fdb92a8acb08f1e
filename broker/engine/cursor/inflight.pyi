"""The entries of a cursor: records that are in flight, deferred or waiting for redelivery."""

from typing import final

@final
class Inflight:
    size: int
    sent: int
    deferred: int
    again: int
    def __init__(self) -> None: ...
