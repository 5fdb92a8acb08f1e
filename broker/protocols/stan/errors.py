"""Errors that clients of NATS Streaming receive: exactly the texts of the original.

Source: the error variables of nats-streaming-server 0.25 (server/server.go, stores/store.go).
"""

from typing import Final

STAN_INVALID_CONNECT: Final = "stan: invalid connection request"
STAN_INVALID_CLIENT_ID: Final = (
    "stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
)
STAN_CLIENT_REGISTERED: Final = "stan: clientID already registered"
STAN_REPLACED: Final = "client has been replaced or is no longer registered"
STAN_INVALID_PUBLISH: Final = "stan: invalid publish request"
STAN_INVALID_SUBSCRIBE: Final = "stan: invalid subscription request"
STAN_NO_CLIENT_ID: Final = "stan: clientID missing"
STAN_UNKNOWN_CLIENT_ID: Final = "stan: unknown clientID"
STAN_INVALID_ACK_WAIT: Final = "stan: invalid ack wait time, should be >= 1s"
STAN_INVALID_IN_FLIGHT: Final = "stan: invalid MaxInflight, should be >= 1"
STAN_INVALID_START: Final = "stan: invalid start position"
STAN_INVALID_SUBJECT: Final = "stan: invalid subject"
STAN_DUPLICATE_DURABLE: Final = "stan: duplicate durable registration"
STAN_DURABLE_QUEUE_NAME: Final = (
    "stan: durable name of a durable queue subscriber can't contain the character ':'"
)
STAN_INVALID_UNSUBSCRIBE: Final = "stan: invalid unsubscribe request"
STAN_UNKNOWN_CHANNEL: Final = "stan: unknown channel"
STAN_INVALID_SUBSCRIPTION: Final = "stan: invalid subscription"
STAN_INVALID_CLOSE: Final = "stan: invalid close request"
STAN_TOO_MANY_CHANNELS: Final = "too many channels"
STAN_TOO_MANY_SUBSCRIPTIONS: Final = "too many subscriptions per channel"
STAN_CASE: Final = (  # the misspelt word is the original's
    'rejecting channel "{name}" because channel "{other}" alreay exists'  # codespell:ignore
    " (different cases not allowed)"
)

# Twinwire's own: the stores of the original have other texts.
STAN_STORE: Final = "stan: cannot be stored: {reason}"
STAN_TEMPORARY_NAME: Final = "stan: invalid subject: #ephemeral topics cannot be channels"
STAN_IS_TOPIC: Final = "stan: invalid subject: {name} is an NSQ topic (see adopt_topics)"
STAN_SEARCHES: Final = "stan: too many subscriptions wait for their start by time"
STAN_ACCOUNT_GONE: Final = (  # in the log
    "the account {} has been taken away: no client reaches NATS Streaming until the next start"
)
