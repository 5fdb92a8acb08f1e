"""Who this broker is to pipelines: an id and a number that stay with its data folder."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from broker.base.durable import save, unsealed
from broker.bulk import limits

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("broker.bulk")

IDENTITY = "broker.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """What is said of the broker itself."""

    name: str
    broker_id: str
    partition: int

    def page(self) -> dict[str, Any]:
        """As it stands in answers."""
        return {"broker": self.name, "broker_id": self.broker_id, "partition": self.partition}


class IdentityError(ValueError):
    """The file of the identity does not read; a new one would make all offsets another's."""


def identity(folder: Path, name: str, partition: int | None) -> Identity:
    """As the folder has it, or made now; a `partition` that is given is kept from then on.
    IdentityError when it cannot be read."""
    path = folder / IDENTITY
    try:
        kept = _read(path)
    except FileNotFoundError:
        kept = None
    except OSError as problem:
        raise IdentityError(str(problem)) from problem
    found = dict(kept or {"broker_id": uuid.uuid4().hex, "partition": 0})
    if partition is not None:
        found["partition"] = partition
    if found != kept:
        try:
            save(path, orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as problem:  # a full disk must not keep the broker from starting
            log.warning("%s cannot be kept, another start has another id: %s", path, problem)
    return Identity(name or found["broker_id"], found["broker_id"], found["partition"])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(unsealed(path.read_bytes()))
        if re.fullmatch("[0-9a-f]{32}", found["broker_id"]) and (
            0 <= int(found["partition"]) <= limits.BULK_PARTITION_MAX
        ):
            return {"broker_id": found["broker_id"], "partition": int(found["partition"])}
    except (ValueError, KeyError, TypeError):
        pass
    raise IdentityError(f"{path}: this is no identity of a broker")
