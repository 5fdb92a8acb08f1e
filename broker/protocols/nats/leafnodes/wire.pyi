"""The protocol between a hub and its leafs as bytes."""

from typing import TypeAlias

_Op: TypeAlias = tuple[str | int | bytes | list[bytes] | None, ...]

def scan_link(
    data: bytes | bytearray,
    *,
    control_line_max: int = ...,
    payload_max: int = ...,
    run_max: int = 512,
    skipping: int = 0,
    pending: int = 0,
) -> tuple[list[_Op], int, int, int, int]: ...
def message_head(
    subject: bytes,
    reply: bytes,
    groups: list[bytes],
    headers_len: int,
    total_len: int,
    size_text: bytes | None = None,
    headers: bool = True,
) -> bytes | None: ...
