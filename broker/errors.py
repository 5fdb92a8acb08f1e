"""Every error that a peer is told: name, text on the wire, whether the connection ends, and source.

Clients match on these texts, so they are the originals' letter by letter. `{name}` marks a part
that is filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WireError:
    """One error of one protocol."""

    text: str
    fatal: bool  # the connection is closed behind it
    source: str  # where the original says so


_NAMED_ESCAPES: Final = {
    7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\",
}  # fmt: skip


def go_quote(raw: bytes) -> str:
    """`raw` in double quotes as Go's %q writes it."""
    out = []
    for char in raw.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if code in _NAMED_ESCAPES:
            out.append(_NAMED_ESCAPES[code])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code == 0x20 or (char.isprintable() and not char.isspace()):
            out.append(char)
        elif code < 0x80:
            out.append(f"\\x{code:02x}")
        else:
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'


TLS_TIMED_OUT: Final = "tls: handshake timed out"  # why a handshake that never ends fails

# --- NATS (nats-server 2.10.22) -----------------------------------------------------------------

NATS_UNKNOWN_OPERATION: Final = WireError("Unknown Protocol Operation", True, "parser.go parse")
NATS_CONTROL_LINE: Final = WireError("maximum control line exceeded", True, "errors.go")
NATS_PAYLOAD: Final = WireError("Maximum Payload Violation", True, "client.go maxPayloadViolation")
NATS_AUTHORIZATION: Final = WireError("Authorization Violation", True, "client.go authViolation")
NATS_PROTOCOL_LEVEL: Final = WireError("invalid client protocol", True, "errors.go")
NATS_RESPONDERS_NEED_HEADERS: Final = WireError(
    "no responders requires headers support", True, "errors.go"
)
NATS_CONNECTIONS: Final = WireError("maximum connections exceeded", True, "errors.go")
NATS_USER_EXPIRED: Final = WireError("User Authentication Expired", True, "client.go authExpired")
NATS_ACCOUNT_EXPIRED: Final = WireError(
    "Account Authentication Expired", True, "client.go accountAuthExpired"
)
NATS_USER_REVOKED: Final = WireError(
    "User Authentication Revoked", True, "accounts.go updateAccountClaimsWithRefresh"
)
NATS_LOGIN_TIMEOUT: Final = WireError("Authentication Timeout", True, "client.go authTimeout")
NATS_ACCOUNT_CONNECTIONS: Final = WireError(
    "maximum account active connections exceeded", True, "errors.go"
)
# "Secure Connection - TLS Required" has no place here: plain text inside a handshake is read by
# nobody, and the peer of the original sees the end, too.
NATS_TLS_THROTTLED: Final = WireError(
    "Connection throttling is active. Please try again later.", True, "server.go createClient"
)
NATS_STALE: Final = WireError("Stale Connection", True, "client.go processPingTimer")
NATS_SUBSCRIPTIONS: Final = WireError("maximum subscriptions exceeded", False, "errors.go")
NATS_SUBJECT: Final = WireError("Invalid Subject", False, "client.go processSub")
NATS_PUBLISH_SUBJECT: Final = WireError("Invalid Publish Subject", False, "client.go processPub")
NATS_PUBLISH_DENIED: Final = WireError(
    "Permissions Violation for Publish to {subject}", False, "client.go pubPermissionViolation"
)
NATS_REPLY_DENIED: Final = WireError(
    "Permissions Violation for Publish with Reply of {subject}",
    False,
    "client.go replySubjectViolation",
)
NATS_QUEUE_DENIED: Final = WireError(
    "Permissions Violation for Subscription to {subject} using queue {queue}",
    False,
    "client.go subPermissionViolation",
)
NATS_SUBSCRIPTION_DENIED: Final = WireError(
    "Permissions Violation for Subscription to {subject}", False, "client.go subPermissionViolation"
)
NATS_SUBSCRIPTION_ENDED: Final = WireError(
    "Permissions Violation for Subscription to {subject} (sid {sid})",
    False,
    "client.go processSubsOnConfigReload",
)
NATS_SUB_TOKENS: Final = WireError(
    "Permissions Violation for Subscription to {subject}, too many tokens",
    False,
    "client.go maxTokensViolation",
)

# Mappings of subjects and imports, as they stand in the log when a configuration is refused
# (subject_transform.go, accounts.go, errors.go).
NATS_BAD_SUBJECT: Final = "invalid subject"
NATS_MAPPING: Final = "invalid mapping destination: {why} in {token}"
NATS_MAPPING_SUBJECT: Final = "invalid subject"
NATS_MAPPING_BLANK: Final = "invalid mapping destination: invalid subject"
NATS_MAPPING_FUNCTION: Final = "unknown function"
NATS_MAPPING_RANGE: Final = "wildcard index out of range"
NATS_MAPPING_FEW: Final = "not enough arguments passed to the function"
NATS_MAPPING_MANY: Final = "too many arguments passed to the function"
NATS_MAPPING_ARGUMENT: Final = "function argument is invalid or in the wrong format"
NATS_MAPPING_UNUSED: Final = "not using all of the token wildcard(s)"
NATS_MAPPING_IMPORT: Final = (
    "the only mapping function allowed for import transforms is {{Wildcard()}}"
)
NATS_MAPPING_TWICE: Final = "duplicate entry for {quoted}"
NATS_MAPPING_WEIGHT: Final = "individual weights need to be <= 100"
NATS_MAPPING_WEIGHTS: Final = "total weight needs to be <= 100"
NATS_LATENCY_STATUS: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    503: "Service Unavailable",
    504: "Service Timeout",
}

# What a request that is no WebSocket is told (websocket.go wsUpgrade).
WEBSOCKET_METHOD: Final = "request method must be GET"
WEBSOCKET_HOST: Final = "'Host' missing in request"
WEBSOCKET_UPGRADE: Final = "invalid value for header 'Upgrade'"
WEBSOCKET_CONNECTION: Final = "invalid value for header 'Connection'"
WEBSOCKET_KEY: Final = "key missing"
WEBSOCKET_VERSION: Final = "invalid version"
WEBSOCKET_ORIGIN: Final = "origin not allowed: {}"
WEBSOCKET_PINNED: Final = "certificate not pinned"
WEBSOCKET_MQTT: Final = "MQTT is not served here"
WEBSOCKET_LEAF: Final = "leaf nodes are not served here"

WEBSOCKET_EARLY: Final = "client sent data before handshake is complete"
WEBSOCKET_REFUSED: Final = "%s - websocket handshake error: %s"  # in the log

# What is no request at all is told (Go's net/http).
HTTP_BAD_REQUEST: Final = "400 Bad Request"
HTTP_NO_HOST: Final = "400 Bad Request: missing required Host header"
HTTP_HOSTS: Final = "400 Bad Request: too many Host headers"
HTTP_TOO_LARGE: Final = "431 Request Header Fields Too Large"

# What a peer is told that breaks the rules of WebSocket (websocket.go wsRead).
WEBSOCKET_UNMASKED: Final = "mask bit missing"
WEBSOCKET_MASKED: Final = "mask bit set"
WEBSOCKET_RESERVED: Final = "reserved bits are set"
WEBSOCKET_CONTROL_LONG: Final = "control frame length bigger than maximum allowed of 125 bytes"
WEBSOCKET_CONTROL_PART: Final = "control frame does not have final bit set"
WEBSOCKET_CONTROL_PACKED: Final = "control frame is compressed"
WEBSOCKET_INSIDE: Final = "new message started before final frame for previous message was received"
WEBSOCKET_CONTINUED: Final = "invalid continuation frame"
WEBSOCKET_OPCODE: Final = "unknown opcode {}"
WEBSOCKET_LENGTH: Final = "length is negative"
WEBSOCKET_PACKED: Final = "compressed, but that was not agreed on"
WEBSOCKET_DEFLATE: Final = "compressed data is damaged"
WEBSOCKET_NO_UTF8: Final = "invalid utf8 body in close frame"

# --- links between NATS servers (leafnode.go)

NATS_LEAF_SUBSCRIPTION: Final = WireError("Invalid Subscription", False, "leafnode.go")
NATS_LEAF_PORT: Final = WireError("attempted to connect to leaf node port", True, "errors.go")
NATS_LEAF_WRONG_PORT: Final = "attempted to connect to wrong port"  # for the log: nothing is said
NATS_LEAF_CLUSTER: Final = WireError("remote leafnode has same cluster name", True, "errors.go")
NATS_LEAF_CLUSTER_BLANK: Final = WireError(
    "cluster name cannot contain spaces or new lines", True, "errors.go"
)
NATS_LEAF_GATEWAY: Final = WireError(
    "Rejecting connection from gateway {name} on the leafnode port", True, "leafnode.go"
)
NATS_LEAF_VERSION: Final = WireError(
    "connection rejected since minimum version required is {version}", True, "leafnode.go"
)
NATS_LEAF_DUPLICATE: Final = WireError(
    "Duplicate Remote LeafNode Connection", True, "leafnode.go addLeafNodeConnection"
)
NATS_LEAF_LOOP: Final = WireError(
    "Loop detected for leafnode account={account}. Delaying attempt to reconnect for 30s",
    True,
    "leafnode.go handleLeafNodeLoop",
)
NATS_LEAF_LOOP_WORDS: Final = "Loop detected"  # by which a peer knows it
NATS_LEAF_STALE: Final = WireError(
    "Stale Leaf Node Connection - Closing", True, "leafnode.go leafNodeResumeConnectProcess"
)
NATS_LEAF_UNWANTED: Final = WireError(
    "Permissions Violation for Subscription to {subject}", True, "leafnode.go leafPermViolation"
)
NATS_LEAF_VIOLATED: Final = WireError(
    "Permissions Violation for Publish to {subject}", False, "leafnode.go leafPermViolation"
)

# Why a NATS connection ended, as monitoring shows it (client.go ClosedState).
NATS_CLOSED_CLIENT: Final = "Client Closed"
NATS_CLOSED_PARSE: Final = "Parse Error"
NATS_CLOSED_PROTOCOL: Final = "Protocol Violation"
NATS_CLOSED_CONTROL_LINE: Final = "Maximum Control Line Exceeded"
NATS_CLOSED_PAYLOAD: Final = "Maximum Message Payload Exceeded"
NATS_CLOSED_AUTHENTICATION: Final = "Authentication Failure"
NATS_CLOSED_PROTOCOL_LEVEL: Final = "Invalid Client Protocol"
NATS_CLOSED_NO_HEADERS: Final = "No Responders Requires Headers"
NATS_CLOSED_CONNECTIONS: Final = "Maximum Connections Exceeded"
NATS_CLOSED_PENDING: Final = "Slow Consumer (Pending Bytes)"
NATS_CLOSED_DEADLINE: Final = "Slow Consumer (Write Deadline)"
NATS_CLOSED_AUTH_TIMEOUT: Final = "Authentication Timeout"
NATS_CLOSED_EXPIRED: Final = "Authentication Expired"
NATS_CLOSED_REVOKED: Final = "Credentials Revoked"
NATS_CLOSED_MISSING_ACCOUNT: Final = "Missing Account"
NATS_CLOSED_ACCOUNT_CONNECTIONS: Final = "Maximum Account Connections Exceeded"
NATS_CLOSED_KICKED: Final = "Kicked"
NATS_CLOSED_TLS: Final = "TLS Handshake Failure"
NATS_CLOSED_WRONG_PORT: Final = "Incorrect Port"
NATS_CLOSED_CLUSTER: Final = "Cluster Names Identical"
NATS_CLOSED_GATEWAY: Final = "Wrong Gateway"
NATS_CLOSED_VERSION: Final = "Minimum Version Required"
NATS_CLOSED_DUPLICATE: Final = "Duplicate Remote LeafNode Connection"
NATS_CLOSED_READ: Final = "Read Error"
NATS_CLOSED_WRITE: Final = "Write Error"
NATS_CLOSED_STALE: Final = "Stale Connection"
NATS_CLOSED_SHUTDOWN: Final = "Server Shutdown"


def nats_line(error: WireError, **parts: str) -> bytes:
    """The error as one line of the NATS protocol."""
    return f"-ERR '{error.text.format(**parts) if parts else error.text}'\r\n".encode()


# --- NSQ (nsqd 1.3.0) ---------------------------------------------------------------------------

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

# nsqlookupd; names stand in single quotes here, and IDENTIFY's body is refused in nsqd's words.
_V1 = "lookup_protocol_v1.go"
NSQ_LOOKUP_IDENTIFY_FIRST: Final = WireError("E_INVALID client must IDENTIFY", True, _V1)
NSQ_LOOKUP_IDENTIFIED: Final = WireError("E_INVALID cannot IDENTIFY again", True, _V1)
NSQ_LOOKUP_FIELDS: Final = WireError("E_BAD_BODY IDENTIFY missing fields", True, _V1)
NSQ_LOOKUP_TOPIC: Final = WireError(
    "E_BAD_TOPIC {command} topic name '{name}' is not valid", True, _V1
)
NSQ_LOOKUP_CHANNEL: Final = WireError(
    "E_BAD_CHANNEL {command} channel name '{name}' is not valid", True, _V1
)
NSQ_LOOKUP_KEYS: Final = WireError("E_INVALID REGISTER too many registrations", True, "ours")


def nsq_text(error: WireError, **parts: str | int) -> bytes:
    """The payload of an error frame; surrogates of bytes that are not UTF-8 become those bytes."""
    text = error.text.format(**parts) if parts else error.text
    return text.encode("utf-8", "surrogateescape")
