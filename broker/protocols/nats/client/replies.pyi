"""Subjects that a responder may publish to because it was asked: allow_responses."""

from typing import final

@final
class Replies:
    def __init__(self, answers_max: int, expire_ns: int) -> None: ...
