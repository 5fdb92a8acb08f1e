"""The scanners of NATS clients and of leaf node links, and what is written to them."""

from typing import TypeAlias

from broker.protocols.nats.client.rate_limit import Bucket

_Op: TypeAlias = tuple[str | int | bytes | list[bytes] | None, ...]

ERRORS: dict[str, int]

def scan_client(
    data: bytes | bytearray,
    *,
    control_line_max: int = 4096,
    payload_max: int = ...,
    run_max: int = 512,
    headers: bool = False,
    skipping: int = 0,
    pending: int = 0,
) -> tuple[list[_Op], int, int, int, int]: ...
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
def take(bucket: Bucket, now_ns: int, msgs: int, octets: int) -> int: ...
