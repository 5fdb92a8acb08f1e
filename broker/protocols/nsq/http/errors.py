"""Errors of nsqd's HTTP interface and of the /v1 interface."""

from __future__ import annotations

from typing import Final

from broker.net.http.errors import HttpError

# --- NSQ HTTP (nsqd http.go, http_api) ----------------------------------------------------------

# nsqd's exact text, which has a blank after each colon.
NSQ_HTTP_TLS_REQUIRED: Final = '{"message": "TLS_REQUIRED", "https_port": {port}}'
NSQ_HTTP_NOT_FOUND: Final = HttpError(404, "NOT_FOUND")
NSQ_HTTP_METHOD: Final = HttpError(405, "METHOD_NOT_ALLOWED")
NSQ_HTTP_REQUEST: Final = HttpError(400, "INVALID_REQUEST")
NSQ_HTTP_INTERNAL: Final = HttpError(500, "INTERNAL_ERROR")
NSQ_HTTP_EXITING: Final = HttpError(503, "EXITING")
NSQ_HTTP_QUARANTINED: Final = HttpError(503, "TOPIC_IS_QUARANTINED")
NSQ_HTTP_BIG: Final = HttpError(413, "MSG_TOO_BIG")
NSQ_HTTP_BODY_BIG: Final = HttpError(413, "BODY_TOO_BIG")
NSQ_HTTP_BAD_BODY: Final = HttpError(413, "BAD_BODY")
NSQ_HTTP_BAD_MESSAGE: Final = HttpError(413, "BAD_MESSAGE")
NSQ_HTTP_EMPTY: Final = HttpError(400, "MSG_EMPTY")
NSQ_HTTP_DEFER: Final = HttpError(400, "INVALID_DEFER")
NSQ_HTTP_OPTION: Final = HttpError(400, "INVALID_OPTION")
NSQ_HTTP_VALUE: Final = HttpError(400, "INVALID_VALUE")
NSQ_HTTP_VALUE_SIZE: Final = HttpError(413, "INVALID_VALUE")
NSQ_HTTP_RATE: Final = HttpError(400, "invalid block rate : {text}")  # plain text
NSQ_HTTP_SECONDS: Final = HttpError(400, "invalid seconds")  # plain text
NSQ_HTTP_PROFILING: Final = HttpError(500, "a profile is already being taken")  # plain text
NSQ_HTTP_DEBUG: Final = HttpError(403, "FORBIDDEN: /debug is for nsq.debug_peers")  # ours
NSQ_HTTP_NO_TOPIC: Final = HttpError(400, "MISSING_ARG_TOPIC")
NSQ_HTTP_TOPIC: Final = HttpError(400, "INVALID_TOPIC")
NSQ_HTTP_ARG_TOPIC: Final = HttpError(400, "INVALID_ARG_TOPIC")
NSQ_HTTP_NO_CHANNEL: Final = HttpError(400, "MISSING_ARG_CHANNEL")
NSQ_HTTP_ARG_CHANNEL: Final = HttpError(400, "INVALID_ARG_CHANNEL")
NSQ_HTTP_UNKNOWN_TOPIC: Final = HttpError(404, "TOPIC_NOT_FOUND")
NSQ_HTTP_FORBIDDEN: Final = HttpError(403, "FORBIDDEN")  # ours: a switch of [bridge] is off
# ours: the topic is a stream of JetStream
NSQ_HTTP_STREAM: Final = HttpError(409, "TOPIC_IS_A_STREAM")
NSQ_HTTP_STREAM_OFFLINE: Final = HttpError(503, "STREAM_IS_OFFLINE")
NSQ_HTTP_STREAM_DEFER: Final = HttpError(400, "STREAM_CANNOT_DEFER")
NSQ_HTTP_STREAM_REFUSED: Final = HttpError(409, "REFUSED_BY_STREAM: {reason}")
NSQ_HTTP_UNKNOWN_CHANNEL: Final = HttpError(404, "CHANNEL_NOT_FOUND")
NSQ_NOT_SAVED: Final = HttpError(503, "NOT_SAVED: {reason}")  # ours: the disk refuses a change


# --- our own requests on the NSQ HTTP API (/v1/) -------------------------------------------------

V1_ARGUMENT: Final = HttpError(400, "INVALID_ARG_{name}: {reason}")
V1_SETTINGS: Final = HttpError(400, "INVALID_SETTINGS: {reason}")
V1_CHANGED: Final = HttpError(409, "CHANGED: {reason}")

V1_NUMBER: Final = "must be a whole number from {low} to {high}, got {text!r}"
V1_CHOICE: Final = "must be one of {choices}, got {text!r}"
V1_PLACE: Final = "give exactly one of to and seq"
V1_MOMENT: Final = (
    "must be oldest, now, a date and time with its zone (2026-01-31T12:00:00Z) "
    "or seconds since 1970, got {text!r}"
)
V1_NOT_QUARANTINED: Final = HttpError(404, "TOPIC_NOT_QUARANTINED")
V1_STILL_QUARANTINED: Final = HttpError(503, "TOPIC_IS_QUARANTINED: {reason}")
V1_NOT_PUT_ASIDE: Final = HttpError(503, "CANNOT_BE_PUT_ASIDE: {reason}")
V1_GONE: Final = "the channel was deleted meanwhile"
V1_SETTINGS_JSON: Final = "the body must be a JSON object: {problem}"
V1_SETTINGS_KEY: Final = "{key}: {reason}"
V1_SETTINGS_UNKNOWN: Final = "unknown key{near}"


# ours: dead letters
NSQ_DEAD_ATTEMPTS: Final = HttpError(400, "INVALID_ARG_MAX_ATTEMPTS")
NSQ_DEAD_TARGET: Final = HttpError(400, "INVALID_ARG_DEAD_LETTER_TOPIC")
NSQ_DEAD_TO: Final = HttpError(400, "INVALID_ARG_TO")
NSQ_DEAD_LIMIT: Final = HttpError(400, "INVALID_ARG_LIMIT")
NSQ_DEAD_PAUSED: Final = HttpError(409, "CHANNEL_IS_PAUSED")
NSQ_DEAD_FAILED: Final = HttpError(503, "CANNOT_BE_STORED")
NSQ_HTTP_NO_NODE: Final = HttpError(400, "MISSING_ARG_NODE")
