"""Answers of one connection that are due in order but wait for the log."""

from typing import final

@final
class Promises: ...
