"""Settings of single topics, read and written with the keys and values of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base.settings import duration_text, near, settings
from broker.base.units import SECOND
from broker.engine.config import SyncPolicy, TopicConfig
from broker.engine.settings import KEYS
from broker.protocols.nsq.http import errors

if TYPE_CHECKING:
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log

_KINDS = {key: kind for key, (_, kind) in settings(TopicConfig).items() if key in KEYS}
_DURATIONS = ("max_age", "keep")


def _shown(key: str, value: object) -> object:
    if key == "sync" and isinstance(value, int | float):
        return duration_text(round(value * SECOND))
    if key in _DURATIONS and isinstance(value, int):
        return duration_text(value) if value else "off"
    return value


class TopicSettings:
    """The settings that /v1/topic/settings reads and writes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def show(self, log: Log) -> dict[str, object]:
        """The settings in force, and those set for this topic only."""
        held = self.engine.settings_of(log)
        return {
            "topic": log.name,
            "settings": {key: _shown(key, value) for key, value in held.items()},
            "set": {key: _shown(key, value) for key, value in log.settings.items()},
        }

    def replace(self, log: Log, given: dict[str, object]) -> None:
        """Replace the topic's own settings; null = as configured. ValueError lists all errors."""
        found: dict[str, object] = {}
        mistakes = []
        for key, raw in given.items():
            if key not in _KINDS:
                reason = errors.V1_SETTINGS_UNKNOWN.format(near=near(key, KEYS))
                mistakes.append(errors.V1_SETTINGS_KEY.format(key=key, reason=reason))
            elif raw is not None:
                try:
                    value = _KINDS[key].read(raw)
                except ValueError as error:
                    mistakes.append(errors.V1_SETTINGS_KEY.format(key=key, reason=error))
                else:
                    found[key] = value.policy if isinstance(value, SyncPolicy) else value
        if mistakes:
            raise ValueError("; ".join(mistakes))
        self.engine.set_settings(log, found)
