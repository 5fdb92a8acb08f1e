"""A receive buffer that a transport fills."""

import sys
from typing import Self, final

@final
class InBuf:
    def __new__(cls, cap: int) -> Self: ...
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
