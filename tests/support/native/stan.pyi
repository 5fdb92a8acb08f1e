"""The hot messages of NATS Streaming in protobuf's wire format."""

def read_pub(data: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes] | None: ...
def read_ack(data: bytes) -> tuple[bytes, int] | None: ...
def write_pub_ack(guid: bytes, error: bytes) -> bytes: ...
def write_msg(
    seq: int,
    subject: bytes,
    reply: bytes,
    headers: bytes,
    body: bytes,
    timestamp_ns: int,
    redelivery: int,
) -> bytes: ...
