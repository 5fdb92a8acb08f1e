"""Responses of one connection: those that wait for the log, and the errors of wrong commands."""

from typing import final

@final
class PendingResponses: ...
