"""What flags and files of nats-streaming-server come to: the settings of the service."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.base.gotext import duration_text
from broker.base.units import SECOND
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server.log import system_text
from broker.protocols.nats.auth.nkeys import KeyPair
from broker.protocols.nats.settings import GLOBAL_ACCOUNT
from broker.protocols.stan import limits
from broker.protocols.stan.config import ChannelLimits, StanSettings, covers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from broker.cli.dropin.nats_streaming.config import Files
    from broker.protocols.nats.settings import Settings

_FOREIGN: Final = "server.dat"  # in every file store of the original
_AUTO_SYNC: Final = 60 * SECOND  # of the original, when it does not sync each write
# What is asked for by a flag, or a key of a file, and why it is not here.
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
    """FlagError for what is not here."""
    for target, (name, reason) in _REFUSED.items():
        if own.get(target):
            raise FlagError(errors.FLAG_REFUSED.format(name, reason))
    if str(own.get("store", "")).upper() == "SQL":
        raise FlagError(errors.FLAG_REFUSED.format("store SQL", errors.STAN_SQL))


def settings_of(own: Mapping[str, Any], files: Files, account: str) -> StanSettings:
    """What the service is told; problem_of() says whether it can be."""
    plain = StanSettings()
    bounds = plain.limits
    return StanSettings(
        cluster_id=own.get("cluster_id", plain.cluster_id),
        discover_prefix=own.get("discover_prefix", plain.discover_prefix),
        account=account,
        store="file" if own.get("store", "").upper() == "FILE" else "memory",
        sync=_sync(own),
        replace_durable=own.get("replace_durable", False),
        hb_interval_ns=own.get("hb_interval", plain.hb_interval_ns),
        hb_timeout_ns=own.get("hb_timeout", plain.hb_timeout_ns),
        hb_fail_count=own.get("hb_fail_count", plain.hb_fail_count),
        max_channels=own.get("max_channels", plain.max_channels),
        limits=ChannelLimits(
            max_msgs=own.get("max_msgs", bounds.max_msgs),
            max_bytes=own.get("max_bytes", bounds.max_bytes),
            max_age_ns=own.get("max_age", bounds.max_age_ns),
            max_subs=own.get("max_subs", bounds.max_subs),
            max_inactivity_ns=own.get("max_inactivity", bounds.max_inactivity_ns),
        ),
        channels=tuple(files.channels.items()),
    )


def _sync(own: Mapping[str, Any]) -> str | float:
    if own.get("file_sync", True):
        return "always"
    period_ns = own.get("file_auto_sync", _AUTO_SYNC)
    return period_ns / SECOND if period_ns > 0 else "none"


def problem_of(own: Mapping[str, Any], files: Files) -> str:
    """What the original finds wrong when it starts; empty if nothing is."""
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
    if (Path(folder) / _FOREIGN).exists():  # it would look as if all of it were gone
        return errors.STAN_FOREIGN.format(folder)
    return ""


def account_of(settings: Settings, own: Mapping[str, Any]) -> str | None:
    """Where the original would log in with what it is given; None: nowhere. FlagError."""
    block = settings.authorization
    if settings.resolver is not None:
        raise FlagError(errors.FLAG_REFUSED.format("operator", errors.STAN_OPERATOR))
    if block.user or block.token:
        return GLOBAL_ACCOUNT  # who they are for is what it logs in as
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


# --- the limits as the log shows them

_WIDTH: Final = 34  # of the frame, unless something is wider


def limit_lines(settings: StanSettings) -> list[str]:
    """The original's table; * marks what is the default."""
    usual = ChannelLimits()
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


def _channel_lines(settings: StanSettings, levels: int) -> Iterator[str]:
    for pattern, bounds in settings.patterns():
        row = [(name, found) for name, found in settings.patterns() if covers(name, pattern)]
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
