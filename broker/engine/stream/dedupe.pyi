"""The ids of messages that a stream got lately."""

from typing import final

@final
class Duplicates:
    window_ns: int
    ids_max: int
    size: int
    def __init__(self, window_ns: int, header: bytes, ids_max: int) -> None: ...
