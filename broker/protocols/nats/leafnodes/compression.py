"""Compression of leaf links: each side has a mode, by which it compresses its output.

    hub -> INFO with its mode
    leaf -> INFO with its mode                 after this, both directions are S2 streams
    hub -> INFO, then CONNECT and so on as without compression

If one side does not compress, CONNECT follows the first INFO, and nothing is compressed. Source:
nats-server server.go selectCompressionMode, selectS2AutoModeBasedOnRTT, reload.go
applyCompressionChanges.
"""

from __future__ import annotations

from typing import Final

from broker.base.gotext import go_quote
from broker.protocols.nats.settings import COMPRESSIONS, Compression

NOT_SUPPORTED, OFF, ACCEPT, AUTO, *_ = COMPRESSIONS
UNCOMPRESSED: Final = "s2_uncompressed"  # checksums only; not a mode of a configuration
_PLAIN: Final = frozenset({"", NOT_SUPPORTED, OFF})
NEEDS_NEGOTIATION: Final = frozenset({NOT_SUPPORTED, OFF, ACCEPT})  # if a reload changes to them
NONE: Final = Compression(OFF)
_LEVELS: Final = (UNCOMPRESSED, *COMPRESSIONS[4:])


class CompressionUnknown(ValueError):  # noqa: N818 - an answer, not a fault
    """The peer's mode is unknown."""


def is_wanted(mode: str) -> bool:
    """Whether a side with this mode negotiates."""
    return mode not in _PLAIN


def choose(own: Compression, peer: str) -> str:
    """The mode for what this side sends, or why nothing is compressed: "off", "not supported".

    `own` is a mode that negotiates; `peer`: the mode in the peer's INFO. CompressionUnknown.
    """
    if peer in ("", NOT_SUPPORTED):
        return NOT_SUPPORTED
    if peer not in (*COMPRESSIONS, UNCOMPRESSED):
        raise CompressionUnknown(f"unsupported route compression mode {go_quote(peer)}")
    if peer == OFF or peer == own.mode == ACCEPT:
        return OFF
    return peer if own.mode == ACCEPT else own.mode


def level_of(mode: str, own: Compression, rtt_ns: int) -> str:
    """The level of a mode, which for s2_auto depends on the round-trip time."""
    if mode != AUTO:
        return mode
    thresholds = own.thresholds_ns
    last = min(len(thresholds), len(_LEVELS)) - 1 if len(thresholds) < 3 else 3
    return _LEVELS[next((at for at, most in enumerate(thresholds) if rtt_ns <= most), last)]
