"""Errors that NSQ clients receive: name, text, whether the connection ends, and source."""

from __future__ import annotations

from typing import Final

from broker.base.errors import WireError

_V2 = "protocol_v2.go"
NSQ_PROTOCOL: Final = WireError("E_BAD_PROTOCOL", True, "tcp.go Handle")
NSQ_STATE: Final = WireError("E_INVALID cannot {command} in current state", True, _V2)
NSQ_NO_HEARTBEATS: Final = WireError(
    "E_INVALID cannot SUB with heartbeats disabled", True, f"{_V2} SUB"
)
NSQ_COMMAND: Final = WireError("E_INVALID invalid command {command}", True, f"{_V2} Exec")
NSQ_PARAMETERS: Final = WireError(
    "E_INVALID {command} insufficient number of parameters", True, f"{_V2} SUB PUB MPUB DPUB"
)
NSQ_PARAMS: Final = WireError(
    "E_INVALID {command} insufficient number of params", True, f"{_V2} FIN REQ TOUCH"
)
NSQ_AUTH_PARAMETERS: Final = WireError(
    "E_INVALID AUTH invalid number of parameters", True, f"{_V2} AUTH"
)
NSQ_TLS_REQUIRED: Final = WireError(
    "E_INVALID cannot {command} in current state (TLS required)", True, f"{_V2} enforceTLSPolicy"
)
NSQ_UPGRADE_FAILED: Final = WireError(
    "E_IDENTIFY_FAILED IDENTIFY failed {cause}", True, f"{_V2} IDENTIFY"
)
NSQ_TWO_COMPRESSIONS: Final = WireError(
    "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression", True, f"{_V2} IDENTIFY"
)
NSQ_AUTH_SET: Final = WireError("E_INVALID AUTH already set", True, f"{_V2} AUTH")
NSQ_AUTH_FAILED: Final = WireError("E_AUTH_FAILED AUTH failed", True, f"{_V2} AUTH, CheckAuth")
NSQ_AUTH_NONE: Final = WireError("E_UNAUTHORIZED AUTH no authorizations found", True, f"{_V2} AUTH")
NSQ_AUTH_FIRST: Final = WireError(
    "E_AUTH_FIRST AUTH required before {command}", True, f"{_V2} CheckAuth"
)
NSQ_UNAUTHORIZED: Final = WireError(
    "E_UNAUTHORIZED AUTH failed for {command} on {topic} {channel}", True, f"{_V2} CheckAuth"
)
NSQ_AUTH_DISABLED: Final = WireError("E_AUTH_DISABLED AUTH disabled", True, f"{_V2} AUTH")
NSQ_TOPIC: Final = WireError("E_BAD_TOPIC {command} topic name {name} is not valid", True, _V2)
NSQ_MPUB_TOPIC: Final = WireError(
    "E_BAD_TOPIC E_BAD_TOPIC MPUB topic name {name} is not valid", True, f"{_V2} MPUB"
)
NSQ_CHANNEL: Final = WireError(
    "E_BAD_CHANNEL SUB channel name {name} is not valid", True, f"{_V2} SUB"
)
NSQ_MESSAGE_ID: Final = WireError("E_INVALID invalid message ID", True, f"{_V2} getMessageID")
NSQ_COUNT: Final = WireError("E_INVALID RDY could not parse count {text}", True, f"{_V2} RDY")
NSQ_COUNT_RANGE: Final = WireError(
    "E_INVALID RDY count {number} out of range 0-{most}", True, f"{_V2} RDY"
)
NSQ_TIMEOUT: Final = WireError(
    "E_INVALID {command} could not parse timeout {text}", True, f"{_V2} REQ DPUB"
)
NSQ_TIMEOUT_RANGE: Final = WireError(
    "E_INVALID DPUB timeout {number} out of range 0-{most}", True, f"{_V2} DPUB"
)
NSQ_BODY_SIZE_UNREAD: Final = WireError(
    "E_BAD_BODY {command} failed to read body size", True, f"{_V2} IDENTIFY AUTH MPUB"
)
NSQ_BODY_UNREAD: Final = WireError(
    "E_BAD_BODY {command} failed to read body", True, f"{_V2} IDENTIFY AUTH"
)
NSQ_BODY_SIZE: Final = WireError(
    "E_BAD_BODY {command} invalid body size {number}", True, f"{_V2} IDENTIFY AUTH MPUB"
)
NSQ_BODY_BIG: Final = WireError(
    "E_BAD_BODY {command} body too big {number} > {most}", True, f"{_V2} IDENTIFY AUTH MPUB"
)
NSQ_MESSAGE_SIZE_UNREAD: Final = WireError(
    "E_BAD_MESSAGE {command} failed to read message body size", True, f"{_V2} PUB DPUB"
)
NSQ_MESSAGE_UNREAD: Final = WireError(
    "E_BAD_MESSAGE {command} failed to read message body", True, f"{_V2} PUB DPUB readMPUB"
)
NSQ_MESSAGE_SIZE: Final = WireError(
    "E_BAD_MESSAGE {command} invalid message body size {number}", True, f"{_V2} PUB DPUB"
)
NSQ_MESSAGE_BIG: Final = WireError(
    "E_BAD_MESSAGE {command} message too big {number} > {most}", True, f"{_V2} PUB DPUB readMPUB"
)
NSQ_MPUB_COUNT_UNREAD: Final = WireError(
    "E_BAD_BODY MPUB failed to read message count", True, f"{_V2} readMPUB"
)
NSQ_MPUB_COUNT: Final = WireError(
    "E_BAD_BODY MPUB invalid message count {number}", True, f"{_V2} readMPUB"
)
NSQ_MPUB_SIZE_UNREAD: Final = WireError(
    "E_BAD_MESSAGE MPUB failed to read message({index}) body size", True, f"{_V2} readMPUB"
)
NSQ_MPUB_SIZE: Final = WireError(
    "E_BAD_MESSAGE MPUB invalid message({index}) body size {number}", True, f"{_V2} readMPUB"
)
NSQ_IDENTIFY_JSON: Final = WireError(
    "E_BAD_BODY IDENTIFY failed to decode JSON body", True, f"{_V2} IDENTIFY"
)
NSQ_IDENTIFY_VALUE: Final = WireError(
    "E_BAD_BODY IDENTIFY {what} ({number}) is invalid", True, "client_v2.go Identify"
)
NSQ_SUB_FAILED: Final = WireError("E_SUB_FAILED SUB failed {cause}", True, f"{_V2} SUB")
NSQ_CONSUMERS: Final = "consumers for {topic}:{channel} exceeds limit of {most}"  # channel.go
NSQ_PUBLISH_FAILED: Final = WireError(
    "E_{command}_FAILED {command} failed {cause}", True, f"{_V2} PUB MPUB DPUB"
)
NSQ_MESSAGE_FAILED: Final = WireError(
    "E_{command}_FAILED {command} {id} failed {cause}", False, f"{_V2} FIN REQ TOUCH"
)
NSQ_NOT_IN_FLIGHT: Final = "ID not in flight"  # channel.go popInFlightMessage
NSQ_NOT_OWNER: Final = "client does not own message"  # channel.go popInFlightMessage
NSQ_EXITING: Final = "exiting"  # topic.go PutMessage
NSQ_NOT_SHARED: Final = "the channel of NATS Streaming of that name is not shared"  # ours
# ours: topics that are streams of JetStream
NSQ_NOT_BRIDGED: Final = "the topic is a stream, and [bridge] does not connect NSQ and NATS"
NSQ_NO_DEFER: Final = "the topic is a stream, whose messages cannot be deferred"
NSQ_OFFLINE: Final = "the stream of the topic is offline"


def nsq_text(error: WireError, **parts: str | int) -> bytes:
    """The payload of an error frame; surrogate escapes become the original bytes."""
    text = error.text.format(**parts) if parts else error.text
    return text.encode("utf-8", "surrogateescape")
