"""Where somebody may publish because it was asked: allow_responses."""

from typing import final

@final
class Replies:
    def __init__(self, answers_max: int, expire_ns: int) -> None: ...
