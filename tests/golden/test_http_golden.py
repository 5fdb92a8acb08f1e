"""nsqd's HTTP API, request by request, as it was recorded from nsqd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.golden.http import load, play
from support.servers.processes import TARGET_ORIGINAL

if TYPE_CHECKING:
    from support import Server

GOLDEN = load(Path(__file__).parent / "http" / "nsqd.jsonl")


def _cases() -> Iterator[tuple[dict[str, Any], list[Any]]]:
    for entry in GOLDEN:
        differs = "differs" in entry and not TARGET_ORIGINAL
        yield entry, entry["ours" if differs else "says"]


def test_every_answer(broker: Server, uniq: str) -> None:
    """All that differ are shown, not the first one only."""
    wrong = []
    for entry, expected in _cases():
        found = play(entry, broker.nsq_http, uniq)
        if "/stats" in entry["ask"] and "topic=" not in entry["ask"]:
            continue  # other tests have topics here too
        if found != expected:
            wrong.append((entry["ask"], expected, found))
    assert wrong == []


@pytest.mark.only_ours
def test_differences_have_reasons() -> None:
    for entry in GOLDEN:
        if "differs" in entry:
            assert entry["differs"]
            assert entry["ours"] != entry["says"]
