"""An asyncio client of NSQ: `Reader` consumes a channel, `Writer` publishes."""

from broker.client.nsq.errors import (
    ClosedError,
    ConnectError,
    NsqError,
    PendingFullError,
    ServerError,
)
from broker.client.nsq.message import Message
from broker.client.nsq.options import Options
from broker.client.nsq.reader import Reader
from broker.client.nsq.writer import Writer

__all__ = [
    "ClosedError",
    "ConnectError",
    "Message",
    "NsqError",
    "Options",
    "PendingFullError",
    "Reader",
    "ServerError",
    "Writer",
]
