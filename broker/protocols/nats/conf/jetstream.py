"""JetStream in a configuration: the block of the server, and the limits of accounts.

Keys that change nothing here are noted. Encryption of files and a TPM are refused: a server that
ignored them would keep in plain text what its operator wants encrypted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.protocols.nats.conf.fields import Block, kind_of, words
from broker.protocols.nats.settings import JetStream, JetStreamLimits

if TYPE_CHECKING:
    from broker.protocols.nats.conf.text import Value

_SWITCH: Final = {"enabled": True, "enable": True, "disabled": False, "disable": False}
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_WITHOUT_EFFECT: Final = words(
    "unique_tag extension_hint max_outstanding_catchup max_buffered_size max_buffered_msgs"
    " info_queue_limit meta_compact meta_compact_size meta_compact_sync max_concurrent_io"
)
_KEYS: Final = ("key", "ek", "encryption_key")
_OLD_KEYS: Final = ("prev_key", "prev_ek", "prev_encryption_key")
NO_ENCRYPTION: Final = (
    "jetstream.{}: streams are not encrypted here. Use an encrypted disk, and remove this key"
)
NO_TPM: Final = (
    "jetstream.tpm: a key of a TPM is for encrypted streams, which are not available. Use an"
    " encrypted disk, and remove this key"
)


def server(root: Block) -> JetStream | None:
    """The block `jetstream`; None if the file does not mention it."""
    folder = root.text("store_dir", "storedir")
    entry = root.take("jetstream")
    if entry is None:
        return None
    if not isinstance(entry.it, dict):
        return JetStream(enabled=_switch(entry, root), store_dir=folder)
    inner = Block(entry, root.mistakes, "jetstream")
    enabled = inner.flag("enabled", "enable", default=True)
    always, sync_ns = _sync(inner)
    most = _limits(inner)
    _refuse_encryption(inner, wanted=enabled)
    found = JetStream(
        enabled=enabled,
        store_dir=inner.text("store_dir", "store", "storedir", default=folder),
        sync_ns=sync_ns,
        sync_always=always,
        max_memory=max(0, _size(inner, "max_memory_store", "max_mem_store", "max_mem")),
        max_storage=max(0, _size(inner, "max_file_store", "max_file")),
        domain=_domain(inner),
        strict=inner.flag("strict", default=True),
        request_queue=inner.number("request_queue_limit", low=0),
        **most,
    )
    for key in _WITHOUT_EFFECT:
        unused = inner.take(key)
        if unused is not None:
            inner.mistakes.note(unused, f"jetstream.{key}: has no effect here")
    inner.done()
    return found


def account(block: Block) -> JetStreamLimits | None:
    """The block `jetstream` of an account; None: not enabled for it."""
    entry = block.take("jetstream")
    if entry is None:
        return None
    if not isinstance(entry.it, dict):
        return JetStreamLimits() if _switch(entry, block) else None
    inner = Block(entry, block.mistakes, "jetstream")
    sizes = ("max_memory", "max_mem", "mem", "memory"), (
        "max_store", "max_file", "max_disk", "store", "disk")  # fmt: skip
    found = JetStreamLimits(
        max_memory=inner.number(*sizes[0], default=-1, low=-1),
        max_storage=inner.number(*sizes[1], default=-1, low=-1),
        max_streams=_count(inner, "max_streams", "streams"),
        max_consumers=_count(inner, "max_consumers", "consumers"),
        max_ack_pending=_count(inner, "max_ack_pending"),
        memory_max_stream_bytes=_stream_size(inner, "mem_max_stream_bytes", "memory"),
        storage_max_stream_bytes=_stream_size(inner, "disk_max_stream_bytes", "store"),
        max_bytes_required=inner.flag("max_bytes_required", "max_stream_bytes", "max_bytes"),
    )
    inner.take("cluster_traffic")
    inner.done()
    return found


def _stream_size(block: Block, name: str, other: str) -> int:
    return block.number(name, f"{other}_max_stream_bytes", default=-1, low=-1) or -1


def _count(block: Block, *names: str) -> int:
    return block.number(*names, default=-1, low=-1) or -1


def _sync(block: Block) -> tuple[bool, int]:
    """Whether each message is synced, and the period otherwise; 0 = the default."""
    entry = block.peek("sync_interval", "sync")
    if entry is not None and isinstance(entry.it, str) and entry.it.lower() == "always":
        block.take("sync_interval", "sync")
        return True, 0
    return False, block.duration("sync_interval", "sync", default=0)


def _domain(block: Block) -> str:
    entry = block.peek("domain")
    found = block.text("domain")
    if entry is not None and any(char in found for char in " .*>\t"):
        block.mistakes.add(entry, f"jetstream.domain: {found!r} is not one token of a subject")
    return found


def _limits(block: Block) -> dict[str, int]:
    inner = block.block("limits", what="jetstream limits")
    if inner is None or not isinstance(inner.value.it, dict):
        return {}
    found = {
        "max_ack_pending": max(0, inner.number("max_ack_pending")),
        "max_request_batch": max(0, inner.number("max_request_batch")),
        "max_consumers": max(0, inner.number("default_max_consumers")),
        "duplicate_window_ns": inner.duration("duplicate_window", default=0),
    }
    for key in ("max_ha_assets", "batch"):
        unused = inner.take(key)
        if unused is not None:
            inner.mistakes.note(unused, f"jetstream.limits.{key}: has no effect here")
    inner.done()
    return found


def _refuse_encryption(block: Block, *, wanted: bool) -> None:
    for names in (_KEYS, _OLD_KEYS):
        entry = block.take(*names)
        if entry is not None and wanted and entry.it:
            block.mistakes.add(entry, NO_ENCRYPTION.format(names[0]))
    cipher = block.take("cipher")
    if cipher is not None:
        block.mistakes.note(cipher, "jetstream.cipher: has no effect here")
    tpm = block.take("tpm")
    if tpm is not None and wanted:
        block.mistakes.add(tpm, NO_TPM)


def _size(block: Block, *names: str, default: int = 0) -> int:
    """A number of bytes, or a text such as "10G"."""
    entry = block.peek(*names)
    if entry is None or not isinstance(entry.it, str):
        return block.number(*names, default=default, low=-1)
    block.take(*names)
    text = entry.it.strip().upper()
    digits, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (digits.isascii() and digits.isdigit()):
        reason = f"{names[0]}: expected a number of bytes, or a text such as 10G, got {entry.it!r}"
        block.mistakes.add(entry, reason)
        return default
    return int(digits) * unit


def _switch(entry: Value, block: Block) -> bool:
    it = entry.it
    if isinstance(it, bool):
        return it
    if isinstance(it, str) and it.lower() in _SWITCH:
        return _SWITCH[it.lower()]
    reason = f'jetstream: expected "enabled", "disabled" or a map, got {kind_of(it)}'
    block.mistakes.add(entry, reason)
    return False
