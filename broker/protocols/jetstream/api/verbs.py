"""The verbs of accounts, streams and messages, by their names in subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.protocols.jetstream.api import messages, streams
from broker.protocols.jetstream.api.dispatch import Verb
from broker.protocols.jetstream.structs import (
    AccountInfo,
    AccountLimits,
    ApiStats,
    Page,
    PurgeAnswer,
    RestoreAnswer,
    StreamListAnswer,
    StreamNamesAnswer,
    Tier,
)

if TYPE_CHECKING:
    from broker.protocols.jetstream.api.dispatch import Call, Parts

# The limits outside the tiers, for an account with tiers.
NO_TIER: Final = AccountLimits(
    max_memory=0,
    max_storage=0,
    max_streams=0,
    max_consumers=0,
    max_ack_pending=0,
    memory_max_stream_bytes=0,
    storage_max_stream_bytes=0,
)


def account_info(call: Call) -> Parts:
    """INFO: usage and limits of the account."""
    account = call.account
    used = {
        "memory": account.used("memory"),
        "storage": account.used("file"),
        "reserved_memory": account.reserved("memory"),
        "reserved_storage": account.reserved("file"),
        "streams": len(account.streams),
        "consumers": sum(len(stream.consumers) for stream in account.streams.values()),
    }
    tiers = {
        # All streams have one replica.
        name: Tier(limits=limits, **(used if name == "R1" else {}))
        for name, limits in account.tiers.items()
    }
    info = AccountInfo(
        **used,
        limits=NO_TIER if tiers else account.limits,
        tiers=tiers,
        domain=account.domain,
        api=ApiStats(
            level=account.context.level, total=account.api_total, errors=account.api_errors
        ),
    )
    return (info,)


def _cluster_only(_call: Call) -> Parts:
    """Never called: the dispatcher refuses these verbs."""
    return ()


def _clustered(kind: str, *names: int) -> Verb:
    return Verb(kind, _cluster_only, names or (1,), needs_cluster=True)


VERBS: Final = {
    "INFO": Verb("account_info", account_info, (0,)),
    "STREAM.CREATE": Verb("stream_create", streams.create),
    "STREAM.UPDATE": Verb("stream_update", streams.update),
    "STREAM.INFO": Verb("stream_info", streams.info, on_error=(Page(),)),
    "STREAM.NAMES": Verb("stream_names", streams.names, (0,), on_error=(StreamNamesAnswer(),)),
    "STREAM.LIST": Verb("stream_list", streams.listed, (0,), on_error=(StreamListAnswer(),)),
    "STREAM.DELETE": Verb("stream_delete", streams.delete, empty=True),
    "STREAM.SNAPSHOT": Verb("stream_snapshot", streams.snapshot),
    "STREAM.RESTORE": Verb("stream_restore", streams.restore, on_error=(RestoreAnswer(),)),
    "STREAM.MSG.GET": Verb("stream_msg_get", messages.get, counted=False),
    "STREAM.MSG.DELETE": Verb("stream_msg_delete", messages.delete),
    "STREAM.PURGE": Verb("stream_purge", messages.purge, on_error=(PurgeAnswer(),)),
    "STREAM.PEER.REMOVE": _clustered("stream_remove_peer"),
    "STREAM.PEER.EVACUATE": _clustered("stream_evacuate_peer"),
    "STREAM.LEADER.STEPDOWN": _clustered("stream_leader_stepdown"),
    "STREAM.CANCEL_MOVE": _clustered("stream_cancel_move"),
    "CONSUMER.LEADER.STEPDOWN": _clustered("consumer_leader_stepdown", 2),
    "CONSUMER.PEER.REMOVE": _clustered("consumer_remove_peer", 2),
    "CONSUMER.PEER.EVACUATE": _clustered("consumer_evacuate_peer", 2),
}
