"""Every golden transcript, fed whole, byte by byte, cut at random, joined, and with junk behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.golden.replay import Player
from support.golden.transcript import Scenario, read_transcript
from support.servers.processes import TARGET_ORIGINAL

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet
    from conftest import BrokerFor

FOLDER = Path(__file__).parent


def _cases() -> Iterator[ParameterSet]:
    for path in sorted(FOLDER.glob("n*/*.txt")):
        transcript = read_transcript(path)
        for scenario in transcript.scenarios:
            for feed in scenario.ways(original=TARGET_ORIGINAL):
                name = f"{scenario.identity} [{feed}]"
                yield pytest.param(scenario, transcript.options, feed, id=name)


@pytest.mark.parametrize(("scenario", "options", "feed"), list(_cases()))
def test_golden(
    scenario: Scenario,
    options: dict[str, dict[str, object]],
    feed: str,
    broker_for: BrokerFor,
    uniq: str,
) -> None:
    server = broker_for(options)
    server.check_alive()
    Player(scenario, server, uniq.encode(), feed).run()
    server.check_alive()
