"""Dead letters: a record moves to another log after `deliver_max` unsuccessful deliveries."""

from collections.abc import Callable
from typing import final

from broker.engine.cursor.cursor import Cursor, DeadLetterQueue
from broker.engine.log.log import Log

REASONS: tuple[str, ...]
ADDRESSED: int

_Facts = tuple[int, int, str, int, bytes, bytes]

@final
class DeadLetters(DeadLetterQueue):
    cursor: Cursor
    deliver_max: int
    target: str
    count: int
    failing: bool
    def __init__(
        self,
        cursor: Cursor,
        deliver_max: int,
        target: str,
        open_log: Callable[[str], Log],
        heads: Callable[[Cursor, _Facts], bytes],
    ) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    @property
    def leaving(self) -> int: ...

def dead_letters_of(cursor: Cursor) -> DeadLetters | None: ...
