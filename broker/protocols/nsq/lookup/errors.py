"""Errors that clients of nsqlookupd receive."""

from __future__ import annotations

from typing import Final

from broker.base.errors import WireError

# nsqlookupd puts names in single quotes; its errors for IDENTIFY's body are nsqd's.
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
