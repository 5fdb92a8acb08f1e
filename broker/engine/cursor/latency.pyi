"""How long records take from being stored to being acked, over a window of time."""

from collections.abc import Iterable, Sequence
from typing import final

@final
class AckLatency:
    def __init__(self, window_ns: int, now_ns: int) -> None: ...

def quantiles(
    sketches: Iterable[AckLatency], parts: Sequence[float], now_ns: int
) -> tuple[int, list[int]]: ...
