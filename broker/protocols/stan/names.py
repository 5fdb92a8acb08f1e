"""The names of channels in a data folder: those of topics, or apart from them.

Which of them it is follows from [bridge]. When that has changed since the last start, the logs of
all channels get their other name before any log is opened. A start that is killed meanwhile is
taken up by the next one: a log that has its name already is left alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from broker.base.durable import sync_path
from broker.engine.log.files import CURSOR_SUFFIX, CURSORS, MetaError, escape, load_meta, save_meta
from broker.protocols.access import APART, FACE
from broker.protocols.stan.subscriptions import CURSOR_PREFIX

if TYPE_CHECKING:
    from pathlib import Path

    from broker.protocols.access import Access

log = logging.getLogger("broker.stan")

MARK: Final = "names"  # in the service's folder: which names channels have
_APART, _SHARED = "apart\n", "shared\n"


class NamesError(OSError):
    """Channels cannot have the names that [bridge] asks for; says what to do."""


def name_channels(logs: Path, folder: Path, access: Access) -> None:
    """Give the channels below `logs` their names. OSError; NamesError: nothing has changed."""
    wanted = _APART if access.is_apart else _SHARED
    mark = folder / MARK
    if (mark.read_text() if mark.exists() else _SHARED) == wanted:
        return
    found = _channels(logs) if logs.exists() else []
    for place, meta in found:
        _check(logs, place, meta, access)
    for place, meta in found:
        _rename(logs, place, meta, access)
    if found:
        sync_path(logs)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(wanted)
    sync_path(mark)
    sync_path(folder)


def _channels(logs: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Folder and metadata of each; what does not read is told when logs are opened."""
    found = []
    for place in sorted(logs.iterdir()):
        try:
            meta = load_meta(str(place)) if place.is_dir() else None
        except (MetaError, OSError):
            continue
        if meta is not None and meta.get("face") == FACE:
            found.append((place, meta))
    return found


def _new_name(meta: dict[str, Any], access: Access) -> str:
    return access.log_name(str(meta["name"]).removeprefix(APART))


def _check(logs: Path, place: Path, meta: dict[str, Any], access: Access) -> None:
    name = _new_name(meta, access)
    target = logs / escape(name)
    if target != place and target.exists():
        raise NamesError(
            f"there are a topic and a channel of NATS Streaming called {name}: delete one of them,"
            " or keep both with [bridge] stan_to_nsq = false and nsq_to_stan = false"
        )
    cursors = place / CURSORS
    own = escape(CURSOR_PREFIX)
    others = [
        entry.name.removesuffix(CURSOR_SUFFIX)
        for entry in (cursors.iterdir() if cursors.exists() else ())
        if entry.name.endswith(CURSOR_SUFFIX) and not entry.name.startswith(own)
    ]
    if access.is_apart and others:
        raise NamesError(
            f"channels of NATS Streaming are to be apart from NSQ topics, but {meta['name']} has"
            f" NSQ channels ({', '.join(sorted(others))}) too: start with [bridge]"
            " stan_to_nsq = true and nsq_to_stan = true, and delete them, or leave it so"
        )


def _rename(logs: Path, place: Path, meta: dict[str, Any], access: Access) -> None:
    name = _new_name(meta, access)
    if meta["name"] != name:
        kept = {key: value for key, value in meta.items() if key not in ("version", "name")}
        save_meta(str(place), {"name": name, **kept}, durable=True)
    target = logs / escape(name)
    if target != place:
        place.rename(target)
        log.info("the log of channel %s is called %s now", name.removeprefix(APART), name)
