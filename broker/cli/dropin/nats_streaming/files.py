"""The configuration files of nats-streaming-server.

A file has a block for the service, or its keys at the top level:

    port: 4222                    # of the NATS server
    streaming {
        id: "orders"
        store: file, dir: "/data"
        store_limits { max_msgs: 5000, channels { "bulk.>" { max_bytes: 1GB } } }
    }

Keys and their aliases are those of nats-streaming-server 0.25.6, server/conf.go. An unknown key is
reported and ignored; the original ignores it silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.base.gotext import go_quote
from broker.cli.dropin import errors
from broker.cli.dropin.nats_streaming.settings import Files
from broker.protocols.nats.conf import reader
from broker.protocols.nats.conf.fields import Block, Mistakes, go_duration, words
from broker.protocols.nats.conf.parser import parse_file
from broker.protocols.nats.conf.text import ConfErrors, ConfNote, Value
from broker.protocols.stan.config import StanChannelConfig, is_valid_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.protocols.nats.conf.text import Map

# Target (the same as for flags) and the names of its key.
_TEXTS: Final = {
    "cluster_id": "id cid cluster_id",
    "discover_prefix": "discover_prefix",
    "store": "st store_type store storetype",
    "dir": "dir datastore",
    "nats_server": "ns nats_server nats_server_url",
    "ft_group": "ft_group ft_group_name",
    "encryption_key": "encryption_key",
    "user": "username user",
    "password": "password pass",
    "token": "token",
    "nkey_seed_file": "nkey_seed_file",
    "credentials": "credentials",
}
_FLAGS: Final = {
    "stan_debug": "sd stan_debug",
    "stan_trace": "sv stan_trace",
    "partitioning": "partitioning",
    "encrypt": "encrypt",
    "replace_durable": "replace_durable replace_durables replace_duplicate_durable"
    " replace_duplicate_durables",
}
_DURATIONS: Final = {
    "hb_interval": "hbi hb_interval server_to_client_hb_interval",
    "hb_timeout": "hbt hb_timeout server_to_client_hb_timeout",
}
_NUMBERS: Final = {"hb_fail_count": "hbf hb_fail_count server_to_client_hb_fail_count"}
_LIMITS: Final = "limits store_limits storelimits"
_FILE: Final = "file file_options"
_SQL: Final = "sql sql_options"
_IDLE: Final = "secure syslog_name encryption_cipher"  # accepted without effect
# Keys of the service in a file without the block; the others are for the NATS server.
_OURS: Final = frozenset(
    word
    for names in (
        *(*_TEXTS.values(), *_FLAGS.values(), *_DURATIONS.values(), *_NUMBERS.values()),
        *(_LIMITS, _FILE, _SQL, _IDLE),
    )
    for word in words(names)
)
_BOUNDS: Final = {
    "max_subs": "msu max_subs max_subscriptions maxsubscriptions",
    "max_msgs": "mm max_msgs maxmsgs max_count maxcount",
    "max_bytes": "mb max_bytes maxbytes",
    "max_age": "ma max_age maxage",
    "max_inactivity": "mi max_inactivity maxinactivity",
}
_AGES: Final = ("max_age", "max_inactivity")
_CHANNELS: Final = "channels channels_limits channelslimits per_channel per_channel_limits"
_STORES: Final = ("MEMORY", "FILE", "SQL")


def read_files(nats_file: str, stan_file: str, environment: Mapping[str, str]) -> Files:
    """Read the files, of which one is given at least; a single one is used for both. ConfErrors."""
    first = nats_file or stan_file
    values = _parse(first, environment)
    settings, warnings = reader.read_values(_of_nats(values), first, environment)
    found = Files(settings)
    other = stan_file or nats_file
    _Reader(values if other == first else _parse(other, environment), other, found).read()
    found.warnings += [(str(one), isinstance(one, ConfNote)) for one in warnings]
    return found


def _parse(path: str, environment: Mapping[str, str]) -> Map:
    try:
        return parse_file(Path(path), environment)
    except reader.ConfError as error:
        raise ConfErrors([error]) from None


def _of_nats(values: Map) -> Map:
    """The file without the keys of the service."""
    if any(key.lower() == "streaming" for key in values):
        return {key: it for key, it in values.items() if key.lower() != "streaming"}
    return {key: it for key, it in values.items() if key.lower() not in _OURS}


class _Reader:
    """Reads the keys of the service from one file."""

    def __init__(self, values: Map, file: str, found: Files) -> None:
        inner = [it for key, it in values.items() if key.lower() == "streaming"]
        self.alone = bool(inner)  # inside the block, where all keys are for the service
        self.mistakes = Mistakes(tolerant=True)
        block = inner[-1] if inner else Value(values, file, 1, 1)
        self.root = Block(block, self.mistakes, "streaming")
        self.found = found

    def read(self) -> None:
        """ConfErrors."""
        root, own = self.root, self.found.own
        for target, names in _TEXTS.items():
            _take(own, target, root, names, root.text)
        for target, names in _FLAGS.items():
            _take(own, target, root, names, root.flag)
        for target, names in _NUMBERS.items():
            _take(own, target, root, names, root.number)
        for target, names in _DURATIONS.items():
            _take_duration(own, target, root, names)
        store = own.get("store", "MEMORY").upper()
        if store not in _STORES:
            reason = errors.STAN_UNKNOWN_STORE.format(own["store"])
            root.wrong(reason, *words(_TEXTS["store"]))
        if own.get("encryption_key"):
            own["encrypt"] = True
        if self.root.block("cluster") is not None:
            own["clustered"] = True
        self.limits(root.block(*words(_LIMITS)))
        self.file(root.block(*words(_FILE)))
        for name in (*words(_SQL), *words(_IDLE), *(("tls",) if self.alone else ())):
            if root.take(name) is not None:
                self.found.idle.append(name)
        if self.alone:
            root.done()
        if self.mistakes.errors:
            raise ConfErrors(self.mistakes.errors)
        self.found.warnings += [(str(one), True) for one in self.mistakes.warnings]

    def limits(self, block: Block | None) -> None:
        own = self.found.own
        if block is None:
            return
        _take(own, "max_channels", block, "mc max_channels maxchannels", block.number)
        own |= self.bounds(block)
        channels = block.block(*words(_CHANNELS))
        for name, channel in channels.rest() if channels is not None else ():
            if not is_valid_channel(name, wildcards=True):
                self.mistakes.add(channel, errors.STAN_CHANNEL_NAME.format(go_quote(name)))
            inner = Block(channel, self.mistakes, name)
            bounds = {key: max(it, 0) for key, it in self.bounds(inner).items()}
            inner.done()
            names = {f"{key}_ns" if key in _AGES else key: it for key, it in bounds.items()}
            self.found.channels[name] = StanChannelConfig(name, **names)
        block.done()

    def bounds(self, block: Block) -> dict[str, int]:
        """The limits of a channel, or of all channels."""
        found: dict[str, int] = {}
        for target, names in _BOUNDS.items():
            if target in _AGES:
                _take_duration(found, target, block, names)
            else:
                _take(found, target, block, names, block.number)
        return found

    def file(self, block: Block | None) -> None:
        own = self.found.own
        if block is None:
            return
        _take(own, "file_sync", block, "sync do_sync sync_on_flush", block.flag)
        _take_duration(own, "file_auto_sync", block, "file_auto_sync auto_sync")
        script = "slice_archive_script slice_archive slice_script"
        _take(own, "archive_script", block, script, block.text)
        self.found.idle += [f"file.{name}" for name, _ in block.rest()]


def _take(
    found: dict[str, Any], target: str, block: Block, names: str, read: Callable[..., Any]
) -> None:
    if block.has(*words(names)):
        found[target] = read(*words(names))


def _take_duration(found: dict[str, Any], target: str, block: Block, names: str) -> None:
    entry = block.peek(*words(names))
    text = block.text(*words(names))
    if entry is None or not isinstance(entry.it, str):
        return
    try:
        found[target] = go_duration(text)
    except ValueError as problem:
        block.mistakes.add(entry, f"{target}: {problem}")
