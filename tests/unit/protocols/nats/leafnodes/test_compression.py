"""Which mode and level of compression a side of a leaf link uses."""

from __future__ import annotations

import pytest

from broker.base.units import MS
from broker.protocols.nats.leafnodes.compression import CompressionUnknown, choose, level_of
from broker.protocols.nats.settings import Compression

CHOICES = {
    ("accept", ""): "not supported",
    ("accept", "not supported"): "not supported",
    ("accept", "off"): "off",
    ("accept", "accept"): "off",
    ("accept", "s2_auto"): "s2_auto",
    ("accept", "s2_uncompressed"): "s2_uncompressed",
    ("accept", "s2_best"): "s2_best",
    ("s2_auto", "accept"): "s2_auto",
    ("s2_fast", "accept"): "s2_fast",
    ("s2_fast", "s2_best"): "s2_fast",
    ("s2_fast", "off"): "off",
}


@pytest.mark.parametrize(("own", "peer"), CHOICES)
def test_modes(own: str, peer: str) -> None:
    assert choose(Compression(own), peer) == CHOICES[own, peer]


def test_an_unknown_mode() -> None:
    with pytest.raises(CompressionUnknown, match=r'^unsupported route compression mode "zip"$'):
        choose(Compression("accept"), "zip")


UNCOMPRESSED, FAST, BETTER, BEST = "s2_uncompressed", "s2_fast", "s2_better", "s2_best"


@pytest.mark.parametrize(
    ("thresholds", "levels"),
    [
        ((10, 50, 100), {10: UNCOMPRESSED, 11: FAST, 50: FAST, 100: BETTER, 101: BEST}),
        ((5,), {5: UNCOMPRESSED, 6: UNCOMPRESSED, 1000: UNCOMPRESSED}),
        ((5, 10), {5: UNCOMPRESSED, 6: FAST, 1000: FAST}),
        ((0, 0, 20), {1: BETTER, 20: BETTER, 21: BEST}),
        ((0, 10, 20, 30), {1: FAST, 20: BETTER, 30: BEST, 31: BEST}),
    ],
)
def test_levels_by_the_round_trip_time(thresholds: tuple[int, ...], levels: dict[int, str]) -> None:
    auto = Compression("s2_auto", tuple(rtt * MS for rtt in thresholds))
    assert {rtt: level_of("s2_auto", auto, rtt * MS) for rtt in levels} == levels


def test_other_modes_are_levels() -> None:
    assert level_of("s2_fast", Compression("s2_fast"), 200 * MS) == "s2_fast"
