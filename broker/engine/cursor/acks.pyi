"""The acknowledged records of a cursor: all below a floor, and some above it."""

from typing import Self, final

@final
class AckSet:
    floor: int
    count: int
    def __new__(cls, floor: int = 1, window_max: int = ...) -> Self: ...
