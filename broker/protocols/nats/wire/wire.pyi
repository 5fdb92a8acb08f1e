"""The NATS client protocol as bytes: operations out of input, messages into output."""

from typing import TypeAlias

_Op: TypeAlias = tuple[str | int | bytes | None, ...]

NAMES: dict[int, str]
ERRORS: dict[str, int]

def scan_bytes(
    data: bytes | bytearray,
    *,
    control_line_max: int = 4096,
    payload_max: int = ...,
    run_max: int = 512,
    headers: bool = False,
    skipping: int = 0,
    pending: int = 0,
) -> tuple[list[_Op], int, int, int, int]: ...
