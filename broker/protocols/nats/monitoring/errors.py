"""Errors of the NATS monitoring pages: bodies of a 400 (nats-server monitor.go)."""

from __future__ import annotations

from typing import Final

BOOLEAN: Final = "Error decoding boolean for '{}': strconv.ParseBool: parsing {}: {}"
INTEGER: Final = "Error decoding int for '{}': strconv.Atoi: parsing {}: {}"
UNSIGNED: Final = "Error decoding uint64 for '{}': strconv.ParseUint: parsing {}: {}"
SYNTAX: Final = "invalid syntax"
RANGE: Final = "value out of range"
STATE: Final = "Error decoding state for {}"
SORT: Final = "invalid sorting option: {}"
SORT_STOP: Final = "sort by stop only valid on closed connections"
SORT_REASON: Final = "sort by reason only valid on closed connections"
SUBJECT_FILTER: Final = "filter by subject only valid with account filtering"
TEST_SUBJECT: Final = "invalid test subject, must be valid publish subject: {}"
NO_ACCOUNT: Final = "Account {} does not exist"
NOT_LEADER: Final = "filtered response: not leader"
STREAM_ALONE: Final = '"account" must not be empty when checking stream health'
CONSUMER_ALONE: Final = '"stream" must not be empty when checking consumer health'
NOT_READY: Final = "failed to be ready for connections after 1ms: {}"
NO_RAFT: Final = "No Raft nodes registered"
LOGIN: Final = "401 Unauthorized\n"
NOT_FOUND: Final = "404 page not found\n"
NO_CLIENT: Final = "Client {} not found"
NO_CHANNEL: Final = "Channel {} not found"
NO_STREAMING: Final = "NATS Streaming is being started\n"
