"""The scanner of NSQ's V2 protocol, and the ids of its messages."""

from typing import TypeAlias, final

_Op: TypeAlias = tuple[int, int, bytes, bytes, int, int, int, int]

@final
class Scanner:
    """Commands as tuples, out of input that may be cut anywhere."""

    unsubscribed: bool
    def __init__(
        self, message_max: int, body_max: int, delay_max_ns: int, ready_max: int
    ) -> None: ...
    @property
    def unfinished(self) -> tuple[int, int, int, int]: ...
    def scan(self, data: bytes) -> tuple[int, list[_Op]]: ...

def message_id(seq: int) -> bytes: ...
def message_seq(text: bytes) -> int: ...
