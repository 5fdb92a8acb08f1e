"""The settings of nats-streaming-server: its configuration files, overridden by its flags.

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

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.base.gotext import duration_text, go_quote
from broker.base.units import COUNT_MAX, SECOND
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server.log import system_text
from broker.config.config import Config, ServerConfig
from broker.engine.config import StorageConfig, SyncPolicy
from broker.engine.names import pattern_matches
from broker.protocols.config import BridgeConfig
from broker.protocols.nats.auth.nkeys import KeyPair
from broker.protocols.nats.conf import reader
from broker.protocols.nats.conf.fields import Block, Mistakes, go_duration, words
from broker.protocols.nats.conf.parser import parse_file
from broker.protocols.nats.conf.text import ConfErrors, ConfNote, Value
from broker.protocols.nats.settings import GLOBAL_ACCOUNT
from broker.protocols.stan import limits
from broker.protocols.stan.config import StanChannelConfig, StanConfig, is_valid_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from broker.net.http.config import HttpConfig
    from broker.protocols.nats.conf.text import Map
    from broker.protocols.nats.settings import Settings

# --- files

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


class Files:
    """The content of the files: settings of the NATS server, and by target those of the service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.own: dict[str, Any] = {}
        self.channels: dict[str, StanChannelConfig] = {}
        self.idle: list[str] = []  # keys without effect
        self.warnings: list[tuple[str, bool]] = []  # and whether each is only a note


def read_files(
    nats_file: str, stan_file: str, plain: Settings, environment: Mapping[str, str]
) -> Files:
    """Read the files; a single file is used for both. ConfErrors."""
    first = nats_file or stan_file
    if not first:
        return Files(plain)
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
        place = inner[-1] if inner else Value(values, file, 1, 1)
        self.root = Block(place, self.mistakes, "streaming")
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
        for name, place in channels.rest() if channels is not None else ():
            if not is_valid_channel(name, wildcards=True):
                self.mistakes.add(place, errors.STAN_CHANNEL_NAME.format(go_quote(name)))
            inner = Block(place, self.mistakes, name)
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


# --- flags over files

_FOREIGN: Final = "server.dat"  # present in every file store of the original
_AUTO_SYNC: Final = 60 * SECOND  # default of the original if it does not sync each write
# Flags and keys of features that are not available, with the reason.
_REFUSED: Final = {
    "nats_server": ("nats_server", errors.STAN_EXTERNAL),
    "clustered": ("cluster", errors.STAN_CLUSTERED),
    "ft_group": ("ft_group", errors.STAN_GROUP),
    "partitioning": ("partitioning", errors.STAN_PARTITIONS),
    "encrypt": ("encrypt", errors.STAN_ENCRYPTION),
    "encryption_key": ("encryption_key", errors.STAN_ENCRYPTION),
    "archive_script": ("file_slice_archive_script", errors.STAN_ARCHIVE),
    "credentials": ("credentials", errors.STAN_OPERATOR),
}
_LABELS: Final = {
    "max_channels": "channels",
    "max_subs": "subscriptions",
    "max_msgs": "messages",
    "max_bytes": "bytes",
    "max_age": "age",
    "max_inactivity": "inactivity",
}


def check(own: Mapping[str, Any]) -> None:
    """FlagError for features that are not available."""
    for target, (name, reason) in _REFUSED.items():
        if own.get(target):
            raise FlagError(errors.FLAG_REFUSED.format(name, reason))
    if str(own.get("store", "")).upper() == "SQL":
        raise FlagError(errors.FLAG_REFUSED.format("store SQL", errors.STAN_SQL))


# Keys of [stan] by the names in flags and files.
_KEYS: Final = {
    **{
        name: name
        for name in (
            *("cluster_id", "discover_prefix", "replace_durable", "hb_fail_count"),
            *("max_channels", "max_subs", "max_msgs", "max_bytes"),
        )
    },
    **{name: f"{name}_ns" for name in ("hb_interval", "hb_timeout", "max_age", "max_inactivity")},
}


def settings_of(own: Mapping[str, Any], files: Files, account: str) -> StanConfig:
    """The section of the service; problem_of() checks whether the service can start with it."""
    return StanConfig(
        enabled=True,
        account=account,
        store="file" if own.get("store", "").upper() == "FILE" else "memory",
        sync=_sync(own),
        channel=tuple(files.channels.values()),
        **{key: own[name] for name, key in _KEYS.items() if name in own},
    )


def config_of(stan: StanConfig, folder: Path | None, http: HttpConfig) -> Config:
    """The configuration of the server that runs the service.

    As in the original, channels and other subjects do not share messages, and only the limits of
    channels limit the messages in memory.
    """
    nothing = BridgeConfig(
        nsq_to_nats=False, nats_to_nsq=False, stan_to_nats=False, nats_to_stan=False
    )
    return Config(
        server=ServerConfig(data=str(folder or "")),
        http=http,
        stan=stan,
        storage=StorageConfig(sync=stan.sync, memory_topic_max=COUNT_MAX),
        bridge=nothing,
    )


def _sync(own: Mapping[str, Any]) -> SyncPolicy:
    if own.get("file_sync", True):
        return SyncPolicy("always")
    period_ns = own.get("file_auto_sync", _AUTO_SYNC)
    return SyncPolicy("period", period_ns) if period_ns > 0 else SyncPolicy("none")


def problem_of(own: Mapping[str, Any], files: Files) -> str:
    """The error that the original finds when it starts; empty if none."""
    store = own.get("store", "MEMORY")
    if store.upper() not in ("MEMORY", "FILE"):
        return errors.STAN_STORE_TYPE.format(store.upper())
    for target, label in _LABELS.items():
        if (given := own.get(target, 0)) < 0:
            shown = duration_text(given) if label in ("age", "inactivity") else given
            return errors.STAN_NEGATIVE.format(label, shown)
    most = own.get("max_channels", limits.STAN_MAX_CHANNELS)
    literal = sum(1 for name in files.channels if "*" not in name and ">" not in name)
    if 0 < most < literal:
        return errors.STAN_MANY_CHANNELS.format(literal, most)
    return _problem_of_folder(own.get("dir", "")) if store.upper() == "FILE" else ""


def _problem_of_folder(folder: str) -> str:
    if not folder:
        return errors.STAN_NO_FOLDER
    if (Path(folder) / _FOREIGN).exists():  # starting anyway would look as if all data were lost
        return errors.STAN_FOREIGN.format(folder)
    return ""


def account_of(settings: Settings, own: Mapping[str, Any]) -> str | None:
    """The account that the original would log in to; None: no login is accepted. FlagError."""
    block = settings.authorization
    if settings.resolver is not None:
        raise FlagError(errors.FLAG_REFUSED.format("operator", errors.STAN_OPERATOR))
    if block.user or block.token:
        return GLOBAL_ACCOUNT  # the service logs in as one of them
    users = [(user, GLOBAL_ACCOUNT) for user in block.users]
    users += [(user, account.name) for account in settings.accounts for user in account.users]
    if not users:
        return GLOBAL_ACCOUNT
    key = _public_key(own["nkey_seed_file"]) if own.get("nkey_seed_file") else ""
    name = own.get("user") or ("" if key else settings.no_auth_user)
    for user, account in users:
        if (key and user.nkey == key) or (name and user.name == name):
            return account
    return None


def _public_key(path: str) -> str:
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise FlagError(system_text("open", path, error)) from None
    seeds = [line.strip() for line in text.splitlines() if line.strip().startswith("SU")]
    try:
        return KeyPair.from_seed(seeds[0] if seeds else "").public
    except ValueError as problem:
        raise FlagError(f"{path}: {problem}") from None


# --- the limits in the log

_WIDTH: Final = 34  # width of the frame, unless a line is longer


def limit_lines(settings: StanConfig) -> list[str]:
    """The original's table; * marks defaults."""
    usual = StanConfig().limits
    lines = [
        "---------- Store Limits ----------",
        f"Channels:        {_shown(settings.max_channels, limits.STAN_MAX_CHANNELS, str)}",
        "--------- Channels Limits --------",
    ]
    for label, name, write in _ROWS:
        value, default = getattr(settings.limits, name), getattr(usual, name)
        lines.append(f"  {label:<13}: {_shown(value, default, write)}")
    entries = settings.patterns()
    rows = list(_channel_lines(settings, max((len(n.split(".")) for n, _ in entries), default=0)))
    width = max(_WIDTH, *map(len, rows)) if rows else _WIDTH
    if rows:
        title = " List of Channels "
        dashes = width - len(title)
        lines.append("-" * (dashes // 2) + title + "-" * (dashes - dashes // 2))
    return [*lines, *rows, "-" * width]


def _channel_lines(settings: StanConfig, levels: int) -> Iterator[str]:
    for pattern, bounds in settings.patterns():
        row = [
            (name, found) for name, found in settings.patterns() if pattern_matches(name, pattern)
        ]
        level = [name for name, _ in row].index(pattern)
        wider = row[level - 1][1] if level else settings.limits
        yield " " * level + pattern
        for label, name, write in _ROWS:
            value = getattr(bounds, name)
            if value != getattr(wider, name):
                text = "unlimited" if not value else write(value)
                yield f"{' ' * level} |-> {label:<13} {' ' * (levels - level)}{text:>13}"


def _shown(value: int, default: int, write: Any) -> str:
    text = "unlimited" if not value else write(value)
    return f"{text:>13}{' *' if value == default else ''}"


def _size_text(size: int) -> str:
    power = int(math.log(size, 1024)) if size >= 1024 else 0
    return f"{size / 1024**power:.2f} {'KMGTPE'[power - 1]}B" if power else f"{size} B"


_ROWS: Final = (
    ("Subscriptions", "max_subs", str),
    ("Messages", "max_msgs", str),
    ("Bytes", "max_bytes", _size_text),
    ("Age", "max_age_ns", duration_text),
    ("Inactivity", "max_inactivity_ns", duration_text),
)
