"""A segment seen from aside: read by any thread, with a mapping of its own."""

from typing import final

@final
class View:
    size: int
    first_seq: int
    next_seq: int
