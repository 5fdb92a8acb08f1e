"""The limits of a channel: which patterns hold, and what they inherit."""

from __future__ import annotations

import dataclasses

import pytest

from broker.protocols.stan.config import (
    ChannelLimits,
    StanChannelConfig,
    StanConfig,
    is_valid_channel,
)

GLOBAL = ChannelLimits(max_msgs=100, max_bytes=5_000, max_age_ns=7, max_subs=3, max_inactivity_ns=0)


def patterns(*entries: StanChannelConfig) -> StanConfig:
    return StanConfig(channel=entries, **dataclasses.asdict(GLOBAL))


def test_the_defaults_are_those_of_the_original() -> None:
    plain = StanConfig()
    assert plain.max_channels == 100
    assert plain.limits_for("foo") == ChannelLimits(
        max_msgs=1_000_000,
        max_bytes=1_024_000_000,
        max_age_ns=0,
        max_subs=1_000,
        max_inactivity_ns=0,
    )
    assert (plain.hb_interval_ns, plain.hb_timeout_ns) == (30 * 10**9, 10 * 10**9)
    assert (plain.cluster_id, plain.discover_prefix) == ("test-cluster", "_STAN.discover")


def test_a_channel_without_an_override_has_the_limits_of_all() -> None:
    assert patterns(StanChannelConfig("foo", max_msgs=1)).limits_for("bar") == GLOBAL


def test_what_is_missing_is_inherited_and_zero_is_no_limit() -> None:
    found = patterns(StanChannelConfig("foo", max_msgs=0, max_subs=1)).limits_for("foo")
    assert found == ChannelLimits(0, 5_000, 7, 1, 0)


def test_the_narrow_inherits_from_the_wide() -> None:
    given = patterns(
        StanChannelConfig("foo.bar.baz", max_age_ns=1),
        StanChannelConfig("foo.>", max_bytes=20),
        StanChannelConfig("foo.*.baz", max_subs=30),
        StanChannelConfig(">", max_msgs=10),
        StanChannelConfig("bar", max_msgs=4),
    )
    assert given.limits_for("foo.bar.baz") == ChannelLimits(10, 20, 1, 30, 0)
    assert given.limits_for("foo.x.baz") == ChannelLimits(10, 20, 7, 30, 0)
    assert given.limits_for("foo.x") == ChannelLimits(10, 20, 7, 3, 0)
    assert given.limits_for("foo") == ChannelLimits(10, 5_000, 7, 3, 0)
    assert given.limits_for("bar") == ChannelLimits(4, 5_000, 7, 3, 0)


def test_zero_is_inherited_as_no_limit() -> None:
    given = patterns(StanChannelConfig("foo.>", max_msgs=0), StanChannelConfig("foo.a", max_subs=9))
    assert given.limits_for("foo.a").max_msgs == 0


def test_siblings_do_not_inherit_from_each_other() -> None:
    # Both match a.b; the later of the row (a word is narrower than *) holds alone.
    given = patterns(StanChannelConfig("*.b", max_msgs=1), StanChannelConfig("a.*", max_subs=2))
    assert given.limits_for("a.b") == ChannelLimits(100, 5_000, 7, 2, 0)
    assert given.limits_for("x.b").max_msgs == 1


def test_a_pattern_inherits_from_one_as_wide_in_tokens() -> None:
    # The original compares > as one token here: foo.> takes what *.* says.
    given = patterns(StanChannelConfig("*.*", max_msgs=1), StanChannelConfig("foo.>", max_subs=2))
    assert given.limits_for("foo.bar") == ChannelLimits(1, 5_000, 7, 2, 0)


def test_patterns_are_listed_from_wide_to_narrow_with_what_holds() -> None:
    given = patterns(
        StanChannelConfig("b", max_msgs=1),
        StanChannelConfig("a.b", max_subs=1),
        StanChannelConfig("a.*", max_bytes=1),
        StanChannelConfig(">", max_age_ns=1),
    )
    assert [name for name, _ in given.patterns()] == [">", "a.*", "a.b", "b"]
    assert dict(given.patterns())["a.b"] == ChannelLimits(100, 1, 1, 1, 0)


@pytest.mark.parametrize("name", ["a", "a.b", "Ä.b-c_d$", "a b", "x" * 300])
def test_legal_channels(name: str) -> None:
    assert is_valid_channel(name)


@pytest.mark.parametrize("name", ["", ".a", "a.", "a..b", "a/b", "*", "a.>", "a*", ">x"])
def test_illegal_channels(name: str) -> None:
    assert not is_valid_channel(name)


@pytest.mark.parametrize("name", ["*", ">", "a.*", "a.*.b", "a.>", "*.>"])
def test_legal_patterns(name: str) -> None:
    assert is_valid_channel(name, wildcards=True)


@pytest.mark.parametrize("name", ["a*", "a.>.b", "*a", "a.b>", "a..>", "**"])
def test_illegal_patterns(name: str) -> None:
    assert not is_valid_channel(name, wildcards=True)
