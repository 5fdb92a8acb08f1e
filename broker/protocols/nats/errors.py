"""Errors that NATS clients receive, and the reasons of closed connections."""

from __future__ import annotations

from typing import Final

from broker.base.errors import WireError

# --- nats-server 2.10.22 -----------------------------------------------------------------------

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

# "Secure Connection - TLS Required" is missing here: during a handshake no peer reads plain text,
# and the peer of the original only sees the end of the connection, too.
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
NATS_QUEUE_ENDED: Final = WireError(
    "Permissions Violation for Subscription to {subject} using queue {queue} (sid {sid})",
    False,
    "client.go processSubsOnConfigReload",
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

# Mappings of subjects and imports: texts in the log for a refused configuration
# (subject_transform.go, accounts.go, errors.go).
NATS_BAD_SUBJECT: Final = "invalid subject"
NATS_MAPPING: Final = "invalid mapping destination: {why} in {token}"
NATS_MAPPING_SUBJECT: Final = "invalid transform"
NATS_MAPPING_BLANK: Final = "invalid mapping destination: invalid transform"
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
NATS_MAPPING_LEFT_OUT: Final = "Error adding subject mapping %s for account [%s]: %s"
NATS_LATENCY_STATUS: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    503: "Service Unavailable",
    504: "Service Timeout",
}

# --- links between NATS servers (leafnode.go)

# Reasons of closed connections, shown by monitoring (client.go ClosedState).
NATS_CLOSED_CLIENT: Final = "Client Closed"
NATS_CLOSED_PARSE: Final = "Parse Error"
NATS_CLOSED_PROTOCOL: Final = "Protocol Violation"
NATS_CLOSED_CONTROL_LINE: Final = "Maximum Control Line Exceeded"
NATS_CLOSED_PAYLOAD: Final = "Maximum Message Payload Exceeded"
NATS_CLOSED_AUTHENTICATION: Final = "Authentication Failure"
NATS_CLOSED_PROTOCOL_LEVEL: Final = "Invalid Client Protocol"
NATS_CLOSED_NO_HEADERS: Final = "No Responders Requires Headers"
NATS_CLOSED_SUBSCRIPTIONS: Final = "Maximum Subscriptions Exceeded"
NATS_CLOSED_CONNECTIONS: Final = "Maximum Connections Exceeded"
NATS_CLOSED_PENDING: Final = "Slow Consumer (Pending Bytes)"
NATS_CLOSED_DEADLINE: Final = "Slow Consumer (Write Deadline)"
NATS_CLOSED_AUTH_TIMEOUT: Final = "Authentication Timeout"
NATS_CLOSED_EXPIRED: Final = "Authentication Expired"
NATS_CLOSED_REVOKED: Final = "Credentials Revoked"
NATS_CLOSED_MISSING_ACCOUNT: Final = "Missing Account"
NATS_CLOSED_ACCOUNT_CONNECTIONS: Final = "Maximum Account Connections Exceeded"
NATS_CLOSED_KICKED: Final = "Kicked"
NATS_CLOSED_PROXY_NOT_TRUSTED: Final = "Proxy Not Trusted"
NATS_CLOSED_PROXY_REQUIRED: Final = "Proxy Required"
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


# --- reloads of the configuration (reload.go) ---------------------------------------------------

RELOAD_FAILED: Final = "Failed to reload server configuration: {}"
RELOAD_FILE: Final = "can only reload config when a file is provided using -c or --config"
RELOAD_REFUSED: Final = "config reload not supported for {}: old={}, new={}"
RELOAD_STORE_DIR: Final = "config reload not supported for jetstream storage directory"
RELOAD_BLOCK: Final = "config reload not supported for {}: changed {}"
RELOAD_ADVERTISE: Final = "invalid ClientAdvertise value of {}, err={}"
RELOAD_RESOLVER: Final = "config reload does not support moving to or from an account resolver"
