"""Checks of several values that exclude each other, and the positions of errors in files."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from broker.base.settings import Conflict, conflict
from broker.net.sockets import EVERYWHERE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.base.settings import Address
    from broker.config.config import Config


def conflicts(config: Config) -> Iterator[Conflict]:
    """All conflicts between values: those that sections report, then those of listeners."""
    for _, section in config.sections():
        found = getattr(section, "conflicts", None)
        if found is not None:
            yield from found(config)
    taken: list[tuple[str, Address]] = []
    for key, address in opened(config):
        if address.port == 0:
            continue
        for other, theirs in taken:
            if address == theirs:
                yield conflict(key, other, f"{address} is also the address of {other}")
            elif address.port == theirs.port and not EVERYWHERE.isdisjoint(
                (address.host, theirs.host)
            ):
                reason = f"{address} and {theirs}, the address of {other}, exclude each other"
                yield conflict(key, other, reason)
        taken.append((key, address))
    listeners = dict(_listeners(config, "clients"))
    if not any(listeners.values()):
        *keys, last = listeners
        reason = f"no listener for clients is enabled: give {', '.join(keys)} or {last}"
        yield conflict(keys[0], keys[1], reason)


def _listeners(config: Config, mark: str) -> Iterator[tuple[str, Address | None]]:
    """Key and address of the listeners that have this mark: "listens" or "clients"."""
    for name, section in config.sections():
        if getattr(section, "enabled", True):
            for key in fields(section):
                if key.metadata.get(mark):
                    yield f"{name}.{key.name}", getattr(section, key.name)


def opened(config: Config) -> Iterator[tuple[str, Address]]:
    """Key and address of all listeners that will be opened."""
    for key, address in _listeners(config, "listens"):
        if address is not None:
            yield key, address


def unreadable(config: Config) -> Iterator[tuple[str, str, str]]:
    """Section, key and reason of each file that the server needs at its start and cannot read."""
    for name, section in config.sections():
        if not getattr(section, "reads_files", False):
            continue
        for key in fields(section):
            path = getattr(section, key.name) if key.metadata.get("file") else ""
            try:
                if path:
                    with Path(path).open("rb"):
                        pass
            except OSError as error:
                yield name, key.name, f"{path} cannot be read: {error.strerror}"


def syntax_error(text: str, source: str) -> tuple[str, str]:
    """Position (line:column) and reason of an error of tomllib."""
    match = re.fullmatch(
        r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", text, re.DOTALL
    )
    if match is None:
        return "1", text
    if match[2] is None:
        return str(len(source.splitlines()) or 1), f"{match[1]} at the end of the file"
    return f"{match[2]}:{match[3]}", match[1]
