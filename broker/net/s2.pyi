"""S2, an extension of Snappy."""

from typing_extensions import disjoint_base

from broker.net.filters import Filter

class CompressionError(ValueError): ...

def decompress(data: bytes | bytearray | memoryview) -> bytes: ...
def chunk_of(data: bytes, block: bytes) -> bytes: ...

@disjoint_base
class S2(Filter):
    packs: bool
    block_max: int
    def __init__(self, packs: bool = False, block_max: int = ...) -> None: ...
