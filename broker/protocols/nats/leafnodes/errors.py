"""Errors of leaf node connections, in nats-server's wording."""

from __future__ import annotations

from typing import Final

from broker.base.errors import WireError

NATS_LEAF_SUBSCRIPTION: Final = WireError("Invalid Subscription", False, "leafnode.go")
NATS_LEAF_PORT: Final = WireError("attempted to connect to leaf node port", True, "errors.go")
NATS_LEAF_WRONG_PORT: Final = "attempted to connect to wrong port"  # for the log only
NATS_LEAF_CLUSTER: Final = WireError("remote leafnode has same cluster name", True, "errors.go")
NATS_LEAF_CLUSTER_BLANK: Final = WireError("cluster name cannot contain spaces", True, "errors.go")
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
NATS_LEAF_LOOP_WORDS: Final = "Loop detected"  # the part by which a peer recognizes it
NATS_LEAF_STALE: Final = WireError(
    "Stale Leaf Node Connection - Closing", True, "leafnode.go leafNodeResumeConnectProcess"
)
NATS_LEAF_UNWANTED: Final = WireError(
    "Permissions Violation for Subscription to {subject}", True, "leafnode.go leafPermViolation"
)
NATS_LEAF_VIOLATED: Final = WireError(
    "Permissions Violation for Publish to {subject}", False, "leafnode.go leafPermViolation"
)

# In message traces.
NATS_LEAF_NOT_TRACED: Final = "Not delivered because remote does not support message tracing"
NATS_LEAF_TRACE_ENDS: Final = (
    "Message delivered but remote does not support message tracing "
    "so no trace event generated from there"
)
