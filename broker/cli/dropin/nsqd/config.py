"""Converts the flags of nsqd and nsqlookupd to Twinwire's configuration."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.base.gotext import system_text
from broker.base.settings import Address, Kind, duration_text, near, parse_address, settings
from broker.base.units import US
from broker.cli.dropin import errors
from broker.cli.dropin.environment import from_environment
from broker.cli.dropin.goflags import Flag, FlagError
from broker.cli.dropin.nsqd import flags as nsqd_flags
from broker.config.config import Config
from broker.config.load import SECTIONS, ConfigError, read_toml
from broker.engine import limits as engine_limits
from broker.engine.config import SyncPolicy
from broker.net import limits as net_limits
from broker.net.sockets import ListenError
from broker.protocols.nsq import limits as nsq_limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ADDRESSES = frozenset({"tcp-address", "http-address", "https-address"})


class StartError(Exception):
    """The original would not start with these values."""


def read_file(path: str) -> dict[str, object]:
    """The keys of a configuration file. FlagError with the reason."""
    try:
        values = read_toml(Path(path))
    except OSError as error:
        reason = system_text("open", path, error)
        raise FlagError(errors.DROPIN_CONFIG.format(path, reason)) from None
    except ValueError as error:
        raise FlagError(errors.DROPIN_CONFIG.format(path, error)) from None
    for key, kind in (
        ("tls_required", nsqd_flags.TLS_REQUIRED),
        ("tls_min_version", nsqd_flags.TLS_VERSION),
        ("log_level", nsqd_flags.LEVEL),
    ):
        if key in values:
            try:
                kind.coerce(values[key])
            except ValueError:
                raise FlagError(errors.DROPIN_PARSING.format(key, values[key])) from None
    return values


def attribute_of(target: str) -> tuple[str, str] | None:
    """Section and attribute of "section.key"; None if the configuration has no such key."""
    section, _, key = target.partition(".")
    known = settings(SECTIONS[section]) if section in SECTIONS else {}
    return (section, known[key][0]) if key in known else None


def without_target(flags: Mapping[str, Flag]) -> list[str]:
    """Flags that set no key of the configuration and have no other effect."""
    return sorted(
        name
        for name, flag in flags.items()
        if name not in nsqd_flags.BY_NAME
        and name not in nsqd_flags.NO_EFFECT
        and attribute_of(flag.target) is None
    )


def listen(value: str) -> Address | None:
    """host:port, or the path of a unix socket (port -1); None = off."""
    if not value:
        return None
    if ":" not in value or "/" in value:
        return Address(value, net_limits.UNIX_SOCKET_PORT)
    try:
        return parse_address(value)
    except ValueError:
        reason = f"listen ({value}) failed - listen tcp: address {value}: not an address"
        raise StartError(reason) from None


def check(values: Mapping[str, Any]) -> None:
    """Refuse values that the original refuses at its start, with its texts and in its order."""
    if not 1 <= values["max-deflate-level"] <= nsq_limits.NSQ_DEFLATE_LEVEL_CEILING:
        raise StartError(errors.NSQD_DEFLATE_LEVEL)
    if not values["tcp-address"]:
        raise StartError(errors.NSQD_NO_TCP)
    if not 0 <= values["node-id"] <= nsq_limits.NSQ_NODE_ID_MAX:
        raise StartError(errors.NSQD_NODE_ID)
    required = values["tls-required"] != "false" or values["tls-client-auth-policy"]
    if required and not (values["tls-cert"] and values["tls-key"]):
        raise StartError(errors.NSQD_TLS_WITHOUT)
    if values["tls-root-ca-file"]:
        try:
            Path(values["tls-root-ca-file"]).read_bytes()
        except OSError as error:
            reason = system_text("open", values["tls-root-ca-file"], error)
            raise StartError(errors.NSQD_CLIENT_TLS.format(reason)) from None
    if values["auth-http-request-method"] not in ("get", "post"):
        raise StartError(errors.NSQD_AUTH_METHOD)
    for value in values["e2e-processing-latency-percentile"]:
        if not 0 < value <= 1:
            raise StartError(errors.NSQD_PERCENTILE.format(f"{value:g}"))


def to_config(flags: Mapping[str, Flag], values: Mapping[str, Any]) -> Config:
    """The configuration for these flags, with the NSQ listeners only. StartError."""
    try:
        base = from_environment()
    except ConfigError as error:
        raise StartError(str(error)) from None
    changed: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    changed["nats"]["listen"] = changed["monitor"]["listen"] = None
    changed["nsq"]["listen"] = changed["nsq"]["http"] = changed["bulk"]["listen"] = None
    changed["console"]["listen"] = None
    for name, flag in flags.items():
        target = attribute_of(flag.target)
        if target is not None:
            section, attribute = target
            value = values[name] or (os.curdir if name == "data-path" else values[name])
            changed[section][attribute] = _value(name, flag, value)
        elif name in without_target(flags) and values[name] != flag.default:
            raise StartError(f"--{name} is not supported")
    if "sync-timeout" in values:
        changed["storage"].update(_storage(values))
        # nsqd's minimum is 0: a message without a waiting consumer is dropped.
        changed["nsq"]["ephemeral_channel_max"] = max(1, values["mem-queue-size"])
        changed["nsq"]["given"] = _given(flags, values)
        if not values["tls-cert"]:
            changed["nsq"]["https"] = None  # its flag has a default; nothing may listen there
    parts = {
        section: dataclasses.replace(getattr(base, section), **attributes)
        for section, attributes in changed.items()
        if attributes
    }
    return dataclasses.replace(base, **parts)


def _given(flags: Mapping[str, Flag], values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that /config shows as given, with their keys."""
    given = {flags[name].file_key: values[name] for name in nsqd_flags.SHOWN_AS_GIVEN}
    percentiles = values["e2e-processing-latency-percentile"]
    return given | {"e2e_processing_latency_percentiles": sorted(percentiles, reverse=True)}


def _value(name: str, flag: Flag, value: Any) -> Any:
    """The value for a key. StartError if it is outside the supported range."""
    if name in ADDRESSES:
        return listen(value)
    if name in nsqd_flags.UNCHECKED:
        return tuple(value)
    if name == "statsd-address":
        return _receiver(value)
    target = attribute_of(flag.target)
    assert target is not None
    section, attribute = target
    kind = settings(SECTIONS[section])[attribute.removesuffix("_ns")][1]
    if isinstance(value, bool) or (attribute.endswith("_ns") and value == 0):
        return value
    try:
        if attribute.endswith("_ns"):
            return _duration(kind, value)
        return kind.read(list(value) if isinstance(value, tuple) else value)
    except ValueError as error:
        raise StartError(f"--{name} {error}") from None


def _duration(kind: Kind[int], value: int) -> int:
    """A duration in whole microseconds. ValueError."""
    if value < 0:  # always invalid; the error shows the value
        return kind.read(f"-{duration_text(max(-value, US) // US * US)}")
    return kind.read(duration_text(value // US * US))


def _receiver(value: str) -> Address | None:
    """The address of a statsd daemon. Any text is accepted; like the original, the broker then
    fails to resolve it."""
    try:
        return parse_address(value) if value else None
    except ValueError:
        return Address(value, 0)


def _storage(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of files and syncs: the original also syncs by number of messages, this one by
    time."""
    low, high = engine_limits.STORAGE_SEGMENT_SIZE_MIN, engine_limits.STORAGE_SEGMENT_SIZE_MAX
    period = min(
        max(values["sync-timeout"], engine_limits.STORAGE_SYNC_PERIOD_MIN),
        engine_limits.STORAGE_SYNC_PERIOD_MAX,
    )
    always = values["sync-every"] == 1
    largest = max(values["max-body-size"], values["max-msg-size"])
    return {
        "segment_size": min(max(values["max-bytes-per-file"], low), high),
        "sync": SyncPolicy("always") if always else SyncPolicy("period", period),
        "append_buffer_max": max(engine_limits.STORAGE_APPEND_BUFFER_MAX, largest),
        "memory_topic_max": max(engine_limits.STORAGE_MEMORY_TOPIC_MAX, largest),
    }


def remarks(flags: Mapping[str, Flag], given: Mapping[str, Any]) -> Iterator[str]:
    """A line for each given flag with another effect here, or none."""
    for name in flags:
        if name not in given:
            continue
        if name in nsqd_flags.NO_EFFECT:
            yield f"--{name} has no effect: {nsqd_flags.NO_EFFECT[name]}"
        elif name == "mem-queue-size":
            yield f"--{name} limits #ephemeral channels only: messages wait in the log"
        elif name == "sync-every" and given[name] != 1:
            yield "--sync-every has no effect except 1: --sync-timeout alone sets the period"
        elif name == "max-bytes-per-file":
            size = given[name]
            low, high = (
                engine_limits.STORAGE_SEGMENT_SIZE_MIN,
                engine_limits.STORAGE_SEGMENT_SIZE_MAX,
            )
            if not low <= size <= high:
                yield f"--{name} is limited to {low} .. {high}"


def named_in_file(flags: Mapping[str, Flag], file: Mapping[str, object]) -> dict[str, object]:
    """Flag name -> value, for the keys of a file that belong to a flag."""
    keys = {flag.file_key: name for name, flag in flags.items() if flag.in_file}
    return {keys[key]: value for key, value in file.items() if key in keys}


def unknown_keys(flags: Mapping[str, Flag], file: Mapping[str, object], path: str) -> Iterator[str]:
    """A line for each unknown key of a file. The original ignores these too, but it may be a
    misspelt limit."""
    known = [flag.file_key for flag in flags.values() if flag.in_file]
    for key in file:
        if key not in known:
            yield errors.DROPIN_UNKNOWN_KEY.format(path, key, near(key, known))


def listen_failure(error: Exception, tcp: str, http: str) -> str:
    """The reason of a failed start; for a failed listener in the original's wording."""
    if not isinstance(error, ListenError):
        return str(error)
    host, port = error.listen
    own = host if port == net_limits.UNIX_SOCKET_PORT else f":{port}"
    wanted = next((a for a in (tcp, http) if a.endswith(own)), tcp)
    if error.unknown_host:
        return f"listen ({wanted}) failed - listen tcp: lookup {host}: no such host"
    network = "unix" if port == net_limits.UNIX_SOCKET_PORT else "tcp"
    reason = error.reason.lower()
    return f"listen ({wanted}) failed - listen {network} {wanted}: bind: {reason}"
