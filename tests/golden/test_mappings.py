"""Mappings against what nats-server made of them (record_mappings.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.protocols.nats.accounts.mapping import Mapper
from broker.protocols.nats.accounts.placeholders import MappingError
from broker.protocols.nats.settings import Destination, Mapping

CASES = json.loads((Path(__file__).parent / "nats" / "mappings.json").read_text())


def mapper(case: dict[str, Any]) -> Mapper:
    return Mapper((Mapping(case["source"], (Destination(case["to"]),)),))


def reaches_nobody(subject: bytes | None) -> bool:
    return subject is None or b"" in subject.split(b".")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['source']} to {case['to']}")
def test_as_the_original(case: dict[str, Any]) -> None:
    if case["refused"]:
        with pytest.raises(MappingError) as refusal:
            mapper(case)
        assert str(refusal.value) == case["refused"]
        return
    mapped = mapper(case)
    for subject, result in case["results"].items():
        ours, chance = mapped(subject.encode())
        assert chance == ("random" in case["to"])
        if result is None:
            assert reaches_nobody(ours)
        else:
            assert ours == result.encode()
