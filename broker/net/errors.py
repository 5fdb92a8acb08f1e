"""Errors of WebSocket and HTTP listeners, as peers get them, and of passed sockets."""

from __future__ import annotations

from typing import Final

TLS_TIMED_OUT: Final = "tls: handshake timed out"  # the reason for a handshake that times out

# Sockets that a service manager passes (socket activation).
PASSED_NAME: Final = "the socket {!r} was passed, which is no listener of this command; known: {}"
PASSED_KIND: Final = "the socket {!r} was passed, and is not a listening TCP socket"
PASSED_ADDRESS: Final = "the socket {!r} was passed for {}, but the configured address is {}"

# --- WebSocket (server/websocket.go of nats-server 2.10.22) and HTTP ------------------------------

# Answers to a request that is not a WebSocket's (websocket.go wsUpgrade).
WEBSOCKET_METHOD: Final = "request method must be GET"
WEBSOCKET_HOST: Final = "'Host' missing in request"
WEBSOCKET_UPGRADE: Final = "invalid value for header 'Upgrade'"
WEBSOCKET_CONNECTION: Final = "invalid value for header 'Connection'"
WEBSOCKET_KEY: Final = "key missing"
WEBSOCKET_KEY_BAD: Final = "invalid websocket key"
WEBSOCKET_VERSION: Final = "invalid version"
WEBSOCKET_ORIGIN: Final = "origin not allowed: {}"
WEBSOCKET_PINNED: Final = "certificate not pinned"
WEBSOCKET_MQTT: Final = "MQTT is not served here"
WEBSOCKET_LEAF: Final = "leaf nodes are not served here"
WEBSOCKET_EARLY: Final = "client sent data before handshake is complete"
WEBSOCKET_REFUSED: Final = "%s - websocket handshake error: %s"  # in the log

# Answers to bytes that are not a request (Go's net/http).
HTTP_BAD_REQUEST: Final = "400 Bad Request"
HTTP_NO_HOST: Final = "400 Bad Request: missing required Host header"
HTTP_HOSTS: Final = "400 Bad Request: too many Host headers"
HTTP_TOO_LARGE: Final = "431 Request Header Fields Too Large"

# Errors for a peer that breaks the rules of WebSocket (websocket.go wsRead).
WEBSOCKET_UNMASKED: Final = "mask bit missing"
WEBSOCKET_MASKED: Final = "mask bit set"
WEBSOCKET_RESERVED: Final = "RSV2 and RSV3 must be clear"
WEBSOCKET_CONTROL_LONG: Final = "control frame length bigger than maximum allowed of 125 bytes"
WEBSOCKET_CONTROL_PART: Final = "control frame does not have final bit set"
WEBSOCKET_CONTROL_PACKED: Final = "control frame is compressed"
WEBSOCKET_INSIDE: Final = "new message started before final frame for previous message was received"
WEBSOCKET_CONTINUED: Final = "invalid continuation frame"
WEBSOCKET_OPCODE: Final = "unknown opcode {}"
WEBSOCKET_LENGTH: Final = "invalid 64-bit payload length"
WEBSOCKET_PACKED: Final = "compressed frame received without negotiated permessage-deflate"
WEBSOCKET_DEFLATE: Final = "compressed data is damaged"
WEBSOCKET_NO_UTF8: Final = "invalid utf8 body in close frame"
