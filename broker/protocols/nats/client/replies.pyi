"""Reply subjects that a responder may publish to after a request: allow_responses."""

from typing import final

@final
class Replies:
    def __init__(self, answers_max: int, expire_ns: int) -> None: ...
