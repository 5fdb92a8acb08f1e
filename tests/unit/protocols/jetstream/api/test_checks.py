"""Configurations of streams: defaults, and the first broken rule as nats-server finds it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.base.units import MINUTE, SECOND
from broker.protocols.jetstream.api import checks
from broker.protocols.jetstream.api.checks import Environment, check_update, complete
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import StreamConfig


def no_stream(_name: str) -> None:
    """An account without streams."""


NOTHING = Environment(no_stream)
BAD_NAME = "stream name is required and can not contain '.', '*', '>', '\\', '/'"


def config(**keys: Any) -> StreamConfig:
    return msgspec.convert({"name": "S", **keys}, StreamConfig)


def completed(environment: Environment = NOTHING, **keys: Any) -> StreamConfig:
    found = config(**keys)
    complete(found, environment)
    return found


def refusal(environment: Environment = NOTHING, **keys: Any) -> tuple[int, str]:
    with pytest.raises(ApiError) as failure:
        completed(environment, **keys)
    return failure.value.err_code, failure.value.text


def test_defaults() -> None:
    found = completed()
    assert found.subjects == ["S"]
    assert found.num_replicas == 1
    assert found.duplicate_window == 2 * MINUTE
    counts = (found.max_msgs, found.max_bytes, found.max_msgs_per_subject, found.max_msg_size)
    assert counts == (-1, -1, -1, -1)
    assert found.max_consumers == -1


def test_the_duplicate_window_is_no_longer_than_the_age_and_the_limit() -> None:
    assert completed(max_age=SECOND).duplicate_window == SECOND
    assert completed(Environment(no_stream, SECOND)).duplicate_window == SECOND
    assert completed(mirror={"name": "A"}).duplicate_window == 0
    assert completed(sources=[{"name": "A"}]).subjects == []


def test_a_marker_switches_on_what_it_needs() -> None:
    found = completed(subject_delete_marker_ttl=5 * SECOND)
    assert (found.allow_msg_ttl, found.allow_rollup_hdrs) == (True, True)


def test_an_empty_placement_is_dropped() -> None:
    assert completed(placement={}).placement is None
    assert completed(placement={"tags": ["x"]}).placement is not None


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"name": ""}, BAD_NAME),
        ({"name": "a.b"}, BAD_NAME),
        ({"name": "a b"}, BAD_NAME),
        ({"name": "x" * 256}, "stream name is too long, maximum allowed is 255"),
        ({"description": "x" * 4097}, "stream description is too long, maximum allowed is 4096"),
        (
            {"metadata": {"a": "x" * 131072}},
            "stream metadata exceeds maximum size of 131072 bytes",
        ),
        ({"num_replicas": 6}, "maximum replicas is 5"),
        ({"max_age": -1}, "max age can not be negative"),
        ({"max_age": 1000}, "max age needs to be >= 100ms"),
        ({"duplicate_window": -1}, "duplicates window can not be negative"),
        ({"duplicate_window": 1000}, "duplicates window needs to be >= 100ms"),
        (
            {"duplicate_window": 2 * SECOND, "max_age": SECOND},
            "duplicates window can not be larger then max age",
        ),
        (
            {"deny_purge": True, "allow_rollup_hdrs": True},
            "roll-ups require the purge permission",
        ),
        (
            {"discard_new_per_subject": True},
            "discard new per subject requires discard new policy to be set",
        ),
        (
            {"discard_new_per_subject": True, "discard": "new"},
            "discard new per subject requires max msgs per subject > 0",
        ),
        (
            {"subject_delete_marker_ttl": 5},
            "subject delete marker TTL must be at least 1 second",
        ),
        ({"subjects": ["a b"]}, "invalid subject"),
        ({"subjects": ["a", "*"]}, 'subject "a" overlaps with "*"'),
        ({"subjects": [">"]}, "capturing all subjects requires no-ack to be true"),
        (
            {"subjects": ["$JS.x"]},
            "subjects that overlap with jetstream api require no-ack to be true",
        ),
        (
            {"subjects": ["$SYS.x"]},
            "subjects that overlap with system api require no-ack to be true",
        ),
        (
            {"subjects": ["a.*"], "republish": {"src": "a.*", "dest": "a.$1"}},
            "stream configuration for republish destination forms a cycle",
        ),
        ({"sources": [{"name": "S"}]}, "detected cycle"),
        ({"placement": {"preferred": "x"}}, "preferred server not permitted in placement"),
    ],
)
def test_the_first_broken_rule(keys: dict[str, Any], text: str) -> None:
    assert refusal(**keys) == (10052, text)


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        ({"num_replicas": -1}, 10133),
        ({"mirror": {"name": "A"}, "first_seq": 5}, 10143),
        ({"mirror": {"name": "A"}, "subjects": ["a"]}, 10034),
        ({"mirror": {"name": "A"}, "sources": [{"name": "B"}]}, 10031),
        ({"mirror": {"name": "a b"}}, 10142),
        ({"sources": [{"name": "B"}, {"name": "B"}]}, 10140),
        ({"sources": [{"name": ""}]}, 10141),
        ({"subject_transform": {"src": "a..b", "dest": "c"}}, 10155),
        ({"subject_transform": {"src": "a.*", "dest": "c.{{bogus(1)}}"}}, 10156),
        ({"sources": [{"name": "B", "external": {"api": "$JS.API"}}]}, 10021),
        ({"sources": [{"name": "B", "external": {"api": "JS..API"}}]}, 10052),
        ({"sources": [{"name": "B", "external": {"api": "JS.A API"}}]}, 10052),
        ({"mirror": {"name": "B", "external": {"api": "JS.A", "deliver": "a..b"}}}, 10024),
        ({"sources": [{"name": "B", "external": {"api": "JS.A", "deliver": "a b"}}]}, 10024),
    ],
)
def test_rules_with_a_number_of_their_own(keys: dict[str, Any], number: int) -> None:
    assert refusal(**keys)[0] == number


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"subjects": [f"a.{index}" for index in range(4_097)]},
            "too many subjects of a stream: 4097, maximum allowed is 4096",
        ),
        (
            {"sources": [{"name": f"A{index}"} for index in range(1_001)]},
            "too many sources of a stream: 1001, maximum allowed is 1000",
        ),
        (
            {"sources": [{"name": "A", "subject_transforms": [{"src": "a", "dest": "b"}] * 1_001}]},
            "too many subject transforms of a mirror or source: 1001, maximum allowed is 1000",
        ),
        (
            {"subjects": [f"a.{'*.' * 31}{index}" for index in range(993)]},
            "too many tokens in subjects of a stream: 32769, maximum allowed is 32768",
        ),
        (
            {
                "sources": [
                    {
                        "name": "A",
                        "subject_transforms": [
                            {"src": f"a.{'*.' * 40}{index}", "dest": "b"} for index in range(800)
                        ],
                    }
                ]
            },
            (
                "too many tokens in subject transforms of a mirror or source: 33600,"
                " maximum allowed is 32768"
            ),
        ),
    ],
)
def test_lists_that_are_too_long(keys: dict[str, Any], text: str) -> None:
    assert refusal(**keys) == (10052, text)


def test_of_many_subjects_the_first_pair_is_named() -> None:
    subjects = [f"a.{index}.*" for index in range(3_000)]
    assert completed(subjects=subjects).subjects == subjects
    text = 'subject "a.0.*" overlaps with "a.*.b"'
    assert refusal(subjects=[*subjects, "a.*.b", "a.*.>"]) == (10052, text)
    with pytest.raises(ApiError) as failure:
        completed(sources=[{"name": "A", "subject_transforms": [
            *({"src": f"a.{index}.>", "dest": ""} for index in range(900)), {"src": "a.*.x.>"},
        ]}])  # fmt: skip
    assert failure.value.err_code == 10147


def test_subjects_of_advisories_may_be_stored() -> None:
    assert completed(subjects=["$JS.EVENT.ADVISORY.>"]).subjects == ["$JS.EVENT.ADVISORY.>"]
    assert completed(subjects=[">"], no_ack=True).no_ack


def test_a_cycle_over_another_stream() -> None:
    others = {"A": config(name="A", sources=[{"name": "S"}])}
    assert refusal(Environment(others.get), sources=[{"name": "A"}]) == (10052, "detected cycle")


def test_pedantic_requests_are_not_corrected() -> None:
    strict = Environment(no_stream, pedantic=True)
    assert refusal(strict, max_msgs=-5) == (10157, "pedantic mode: max_msgs must be set to -1")
    text = "pedantic mode: duplicate window cannot be bigger than max age"
    assert refusal(strict, max_age=SECOND) == (10157, text)
    assert completed(max_msgs=-5).max_msgs == -1


@pytest.mark.parametrize("direct", [True, False])
def test_a_mirror_has_direct_get_as_its_origin_has(direct: bool) -> None:
    others = {"A": config(name="A", allow_direct=direct)}
    keys = {"mirror": {"name": "A"}, "mirror_direct": not direct}
    assert completed(Environment(others.get), **keys).mirror_direct == direct
    text = "pedantic mode: origin stream has direct get set, mirror has it disabled"
    assert refusal(Environment(others.get, pedantic=True), **keys) == (10157, text)


def test_a_mirror_keeps_direct_get_without_an_origin_to_compare_with() -> None:
    assert completed(mirror={"name": "A"}, mirror_direct=True).mirror_direct


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({}, {"storage": "memory"}, "can not change storage type"),
        ({}, {"retention": "workqueue"}, "can not change retention policy to/from workqueue"),
        ({"sealed": True}, {}, "can not unseal a sealed stream"),
        ({"deny_delete": True}, {}, "can not cancel deny message deletes"),
        ({"deny_purge": True}, {}, "can not cancel deny purge"),
        ({}, {"allow_msg_counter": True}, "can not change message counter setting"),
        ({}, {"persist_mode": "async"}, "can not change persist mode"),
    ],
)
def test_changes_that_are_refused(old: dict[str, Any], new: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError) as failure:
        check_update(config(**old), config(**new))
    assert failure.value.text == f"stream configuration update {text}"


def test_sealing_forbids_all_changes_of_messages() -> None:
    new = config(sealed=True, max_age=SECOND, allow_rollup_hdrs=True)
    check_update(config(max_age=SECOND), new)
    assert (new.max_age, new.discard, new.deny_delete, new.deny_purge) == (0, "new", True, True)
    assert not new.allow_rollup_hdrs


def test_limits_and_interest_are_exchanged() -> None:
    check_update(config(), config(retention="interest"))
    check_update(config(retention="interest"), config())


def test_names() -> None:
    assert [checks.is_name(name) for name in ("S", "a-b_c", "ä", "a/b", "a\\b", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
