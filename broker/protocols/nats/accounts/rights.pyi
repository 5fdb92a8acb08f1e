"""Checks whether the server may send an answer to the subject that a client chose."""

from typing import Any

def may_receive(account: Any, client: Any, subject: bytes) -> bool: ...
