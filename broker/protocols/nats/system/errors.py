"""Errors in answers of the system account (nats-server events.go, server.go)."""

from __future__ import annotations

from typing import Final

KICK_UNKNOWN: Final = "no such client or leafnode id"
LAME_DUCK_UNKNOWN: Final = "no such client id"
LAME_DUCK_UNABLE: Final = (
    "client does not support Lame Duck Mode or is not ready to receive the notification"
)
RELOAD_NO_FILE: Final = "can only reload config when a file is provided using -c or --config"
NO_JETSTREAM: Final = "jetstream not enabled"
LONG_REQUEST: Final = "request body too long"
PROFILE_NAME: Final = "Profile name not specified"
PROFILE_UNKNOWN: Final = "Profile {} not found"
PROFILE_DURATION: Final = "Duration {} should be between 0s and 15s"

# Errors of Go's encoding/json for invalid JSON and for wrong types.
GO_JSON_END: Final = "unexpected end of JSON input"
GO_JSON_EOF: Final = "unexpected EOF"  # the same for a stream of values
GO_JSON_DEPTH: Final = "exceeded max depth"
GO_JSON_CHARACTER: Final = "invalid character {} {}"
GO_JSON_TYPE: Final = "json: cannot unmarshal {} into Go {} of type {}"
