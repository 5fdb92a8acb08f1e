"""Where the server may send what a client asks for."""

from typing import Any

def may_receive(account: Any, client: Any, subject: bytes) -> bool: ...
