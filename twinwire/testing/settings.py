"""The configuration of a test's broker, written as the TOML file that it reads.

It is separate because the standard library reads TOML and does not write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath

Sections = Mapping[str, Mapping[str, object]]
# NATS Streaming is off by default.
DEFAULTS: Sections = {"stan": {"enabled": True}}


def toml(sections: Sections) -> str:
    """The file with these sections and the defaults of tests. TypeError: not a value of TOML."""
    merged: dict[str, dict[str, object]] = {name: dict(keys) for name, keys in DEFAULTS.items()}
    for name, keys in sections.items():
        if not isinstance(keys, Mapping):
            raise TypeError(f"config[{name!r}] must be a mapping of keys, not {_kind(keys)}")
        merged.setdefault(name, {}).update(keys)
    lines: list[str] = []
    for name, keys in merged.items():
        lines.append(f"[{name}]")
        lines += [f"{_key(key)} = {_value(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isascii() and plain.isalnum() else json.dumps(key, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, PurePath):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, Sequence):
        return f"[{', '.join(_value(one) for one in value)}]"
    raise TypeError(f"a configuration cannot contain {value!r} ({_kind(value)})")


def _kind(value: object) -> str:
    return type(value).__name__
