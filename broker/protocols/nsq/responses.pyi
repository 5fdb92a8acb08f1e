"""Responses of one connection: those that wait for the log, and errors of invalid commands."""

from typing import final

@final
class PendingResponses: ...
