"""The settings of nats-streaming-server: those of its files, overridden by its flags."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.base.gotext import duration_text, system_text
from broker.base.units import COUNT_MAX, SECOND
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import FlagError
from broker.config.config import Config
from broker.engine.config import StorageConfig, SyncPolicy
from broker.engine.names import pattern_matches
from broker.protocols.config import BridgeConfig
from broker.protocols.nats.auth.nkeys import KeyPair
from broker.protocols.nats.settings import GLOBAL_ACCOUNT
from broker.protocols.stan import limits
from broker.protocols.stan.config import StanChannelConfig, StanConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from broker.protocols.nats.settings import Settings


class Files:
    """The content of the files: settings of the NATS server, and by target those of the service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.own: dict[str, Any] = {}
        self.channels: dict[str, StanChannelConfig] = {}
        self.idle: list[str] = []  # keys without effect
        self.warnings: list[tuple[str, bool]] = []  # and whether each is only a note


class Asked(NamedTuple):
    """The result of flags and files."""

    settings: Settings
    stan: StanConfig
    folder: Path | None
    file: str  # of the NATS server
    problem: str  # the reason why it cannot start, reported at the start
    remarks: tuple[str, ...]
    debug: bool
    trace: bool


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


def config_of(stan: StanConfig, folder: Path | None, given: Config) -> Config:
    """The configuration of the server that runs the service.

    As in the original, channels and other subjects do not share messages, and only the limits of
    channels limit the messages in memory. `given`: of the environment.
    """
    nothing = BridgeConfig(
        nsq_to_nats=False, nats_to_nsq=False, stan_to_nats=False, nats_to_stan=False
    )
    return replace(
        given,
        server=replace(given.server, data=str(folder or "")),
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
