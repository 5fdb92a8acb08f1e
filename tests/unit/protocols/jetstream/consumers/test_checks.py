"""Configurations of consumers: defaults, refusals with their texts, updates."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.units import MINUTE, SECOND
from broker.protocols.jetstream.config import JetStreamConfig
from broker.protocols.jetstream.consumers import checks
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import (
    AccountLimits,
    ConsumerConfig,
    StreamConfig,
    StreamConsumerLimits,
)

STREAM = StreamConfig(name="C1", subjects=["c.>"])
SERVER = JetStreamConfig()


def settled(
    stream: StreamConfig = STREAM,
    account: AccountLimits | None = None,
    server: JetStreamConfig = SERVER,
    *,
    pedantic: bool = False,
    **fields: Any,
) -> ConsumerConfig:
    """The configuration after its defaults and checks."""
    config = ConsumerConfig(**fields)
    limits = account or AccountLimits()
    checks.set_defaults(config, stream, limits, server, pedantic=pedantic)
    checks.set_threshold(config)
    checks.check(config, stream, limits, server)
    return config


def refused(**fields: Any) -> tuple[int, int, str]:
    with pytest.raises(ApiError) as problem:
        settled(**fields)
    return problem.value.err_code, problem.value.code, problem.value.text


def test_defaults_of_a_pull_consumer() -> None:
    assert settled() == ConsumerConfig(
        max_deliver=-1, max_waiting=512, inactive_threshold=5 * SECOND
    )
    assert settled(name="P", ack_policy="explicit") == ConsumerConfig(
        name="P",
        ack_policy="explicit",
        ack_wait=30 * SECOND,
        max_deliver=-1,
        max_waiting=512,
        max_ack_pending=1000,
        inactive_threshold=5 * SECOND,
    )
    assert settled(durable_name="D", ack_policy="all") == ConsumerConfig(
        durable_name="D",
        ack_policy="all",
        ack_wait=30 * SECOND,
        max_deliver=-1,
        max_waiting=512,
        max_ack_pending=1000,
    )


def test_defaults_of_a_push_consumer() -> None:
    found = settled(
        deliver_subject="push.in", idle_heartbeat=SECOND, flow_control=True, headers_only=True
    )
    assert (found.max_waiting, found.max_ack_pending, found.inactive_threshold) == (
        0,
        0,
        5 * SECOND,
    )


def test_backoff_sets_ack_wait() -> None:
    found = settled(ack_policy="explicit", max_deliver=4, backoff=[SECOND, 2 * SECOND], ack_wait=7)
    assert found.ack_wait == SECOND
    assert settled(ack_policy="explicit", max_deliver=2, backoff=[1, 2]).max_deliver == 2


@pytest.mark.parametrize("value", [0, -1])
def test_max_waiting_has_a_default(value: int) -> None:
    assert settled(max_waiting=value).max_waiting == 512


def test_limits_of_the_stream_are_defaults() -> None:
    stream = StreamConfig(
        name="L",
        subjects=["l"],
        consumer_limits=StreamConsumerLimits(inactive_threshold=MINUTE, max_ack_pending=10),
    )
    found = settled(stream, ack_policy="explicit")
    assert (found.max_ack_pending, found.inactive_threshold) == (10, MINUTE)
    assert settled(stream).max_ack_pending == 10  # although nothing is acked
    assert settled(stream, max_ack_pending=-1).max_ack_pending == -1
    assert refused(stream=stream, ack_policy="explicit", max_ack_pending=11) == (
        10121,
        400,
        "consumer max ack pending exceeds system limit of 10",
    )
    assert refused(stream=stream, ack_policy="explicit", inactive_threshold=2 * MINUTE) == (
        10153,
        400,
        "consumer inactive threshold exceeds system limit of 1m0s",
    )


def test_readers_of_other_servers_do_not_inherit_a_limit_for_acks() -> None:
    """Mirrors and sources, which ack nothing; with the limit a push consumer would be refused."""
    stream = StreamConfig(name="L", consumer_limits=StreamConsumerLimits(max_ack_pending=10))
    assert refused(stream=stream, deliver_subject="to")[0] == 10082
    found = settled(stream, deliver_subject="to", direct=True)
    assert found.max_ack_pending == 0


def test_limits_of_the_account() -> None:
    account = AccountLimits(max_ack_pending=5)
    assert settled(account=account, ack_policy="explicit").max_ack_pending == 5
    assert refused(account=account, ack_policy="explicit", max_ack_pending=6)[0] == 10121
    found = settled(account=account, ack_policy="explicit", max_ack_pending=-1)
    assert found.max_ack_pending == -1  # without a limit, which the original allows


def test_limits_of_the_server() -> None:
    server = JetStreamConfig(max_ack_pending=7, max_request_batch=10)
    found = settled(server=server, ack_policy="explicit")
    assert (found.max_ack_pending, found.max_batch) == (7, 10)
    found = settled(server=server, deliver_subject="to", ack_policy="explicit")
    assert (found.max_ack_pending, found.max_batch) == (7, 0)
    assert refused(server=server, max_ack_pending=8, max_batch=2) == (
        10121,
        400,
        "consumer max ack pending exceeds system limit of 7",
    )
    assert refused(server=server, max_batch=11, max_ack_pending=8) == (
        10125,
        400,
        "consumer max request batch exceeds server limit of 10",
    )
    assert refused(server=server, pedantic=True, max_waiting=1, max_deliver=1)[2] == (
        "pedantic mode: max_request_batch must be set if it's JetStream limits are set"
    )
    wide = StreamConfig(name="L", consumer_limits=StreamConsumerLimits(max_ack_pending=20))
    assert refused(server=server, stream=wide)[0] == 10121  # what it inherits is too much


START = "consumer delivery policy is "


@pytest.mark.parametrize(
    ("fields", "err_code", "text"),
    [
        ({"num_replicas": 2}, 10126, None),
        ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
        ({"backoff": [-1]}, 10184, None),
        ({"ack_wait": -1}, 10183, "consumer ack wait needs to be positive"),
        ({"ack_policy": "flow_control"}, 10218, None),
        (
            {"ack_policy": "explicit", "max_deliver": 1, "backoff": [1, 2]},
            10116,
            "max deliver is required to be > length of backoff values",
        ),
        ({"description": "x" * 4097}, 10107, None),
        ({"deliver_subject": "a.*"}, 10079, "consumer deliver subject has wildcards"),
        ({"deliver_subject": "a..b"}, 10112, None),
        ({"deliver_subject": "c.5"}, 10081, "consumer deliver subject forms a cycle"),
        ({"deliver_subject": "q", "max_waiting": 5}, 10080, None),
        ({"deliver_subject": "q", "max_ack_pending": 5}, 10082, None),
        ({"deliver_subject": "q", "idle_heartbeat": 1000}, 10083, None),
        ({"rate_limit_bps": 100}, 10086, None),
        ({"idle_heartbeat": SECOND}, 10088, None),
        ({"flow_control": True}, 10089, None),
        ({"max_expires": 1000}, 10115, "consumer max request expires needs to be >= 1ms"),
        ({"direct": True}, 10090, None),
        ({"direct": True, "deliver_subject": "q", "durable_name": "d"}, 10091, None),
        ({"filter_subject": "c.>", "filter_subjects": ["c.1"]}, 10136, None),
        ({"filter_subject": "c..1"}, 10052, "invalid subject"),
        ({"filter_subjects": [""]}, 10139, None),
        ({"filter_subjects": ["c.>", "c.1"]}, 10138, None),
        ({"filter_subjects": ["c.1", "c.1"]}, 10138, None),
        (
            {"deliver_policy": "last_per_subject"},
            10094,
            START + "deliver last per subject, but optional filter subject is not set",
        ),
        (
            {"deliver_policy": "by_start_sequence"},
            10094,
            START + "deliver by start sequence, but optional start sequence is not set",
        ),
        (
            {"deliver_policy": "by_start_time"},
            10094,
            START + "deliver by start time, but optional start time is not set",
        ),
        (
            {
                "deliver_policy": "by_start_time",
                "opt_start_time": "2026-01-01T00:00:00Z",
                "opt_start_seq": 1,
            },
            10094,
            START + "deliver by start time, but optional start start sequence is also set",
        ),
        (
            {"opt_start_seq": 3},
            10094,
            START + "deliver all, but optional start sequence is also set",
        ),
        (
            {"deliver_policy": "new", "opt_start_time": "2026-01-01T00:00:00Z"},
            10094,
            START + "deliver new, but optional start time is also set",
        ),
        (
            {"sample_freq": "abc"},
            10095,
            (
                "failed to parse consumer sampling configuration: "
                'strconv.Atoi: parsing "abc": invalid syntax'
            ),
        ),
        ({"deliver_subject": "q", "flow_control": True}, 10108, None),
        ({"durable_name": "a", "name": "b"}, 10132, None),
        (
            {"metadata": {"k": "x" * 131072}},
            10135,
            "consumer metadata exceeds maximum size of 128KB",
        ),
        ({"name": "x" * 256}, 10102, "consumer name is too long, maximum allowed is 255"),
        ({"durable_name": "a.b"}, 10103, "durable name can not contain '.', '*', '>'"),
        (
            {"name": "a.b"},
            10052,
            "consumer name can not contain '.', '*', '>', '\\', '/'",
        ),
        ({"name": "a b"}, 10052, None),
        ({"priority_groups": ["a"]}, 10196, None),
        ({"priority_timeout": SECOND}, 10197, None),
        ({"priority_policy": "overflow"}, 10159, None),
        ({"priority_policy": "overflow", "priority_groups": [""]}, 10161, None),
        ({"priority_policy": "overflow", "priority_groups": ["bad name!"]}, 10162, None),
        ({"priority_policy": "overflow", "priority_groups": ["x" * 17]}, 10162, None),
        (
            {"priority_policy": "overflow", "priority_groups": ["a"], "deliver_subject": "q"},
            10178,
            None,
        ),
    ],
)
def test_refusals(fields: dict[str, Any], err_code: int, text: str | None) -> None:
    found = refused(**fields)
    assert found[0] == err_code
    if text is not None:
        assert found[2] == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_deliver": -2}, "max_deliver must be set to -1"),
        ({"max_waiting": -1}, "max_waiting must not be negative"),
        ({"max_ack_pending": -2}, "max_ack_pending must be set to -1"),
        ({"max_batch": -1}, "max_batch must not be negative"),
        ({"max_bytes": -1}, "max_bytes must not be negative"),
        ({"inactive_threshold": -1}, "inactive_threshold must not be negative"),
        ({"backoff": [5], "ack_wait": 6}, "first backoff value has to equal batch AckWait"),
    ],
)
def test_pedantic_refusals(fields: dict[str, Any], text: str) -> None:
    assert refused(pedantic=True, **fields) == (10157, 400, f"pedantic mode: {text}")
    settled(**fields)


def test_many_filters() -> None:
    filters = [f"a.{index}.*" for index in range(4_096)]
    assert settled(filter_subjects=filters).filter_subjects == filters
    for wrong, err_code in ((["a.*.*"], 10138), (["a.7.*"], 10138), ([], 0), (["b", "c"], 10052)):
        fields = {"filter_subjects": [*filters[:4_095], *wrong]}
        if not err_code:
            settled(**fields)
            continue
        with pytest.raises(ApiError) as problem:
            settled(**fields)
        assert problem.value.err_code == err_code


def test_filters_with_too_many_tokens() -> None:
    filters = [f"a.{'*.' * 30}{index}" for index in range(1_024)]
    assert settled(filter_subjects=filters).filter_subjects == filters
    with pytest.raises(ApiError) as problem:
        settled(filter_subjects=[*filters, "b"])
    assert problem.value.err_code == 10052


def test_filters_that_only_partly_overlap_are_accepted() -> None:
    assert settled(filter_subjects=["a.*", "*.b"]).filter_subjects == ["a.*", "*.b"]


def test_acks_of_flow_control() -> None:
    fields: dict[str, Any] = {
        "ack_policy": "flow_control",
        "deliver_subject": "q",
        "flow_control": True,
        "max_ack_pending": 10,
        "idle_heartbeat": SECOND,
    }
    settled(**fields)
    whole = settled(ack_policy="flow_control", deliver_subject="q", idle_heartbeat=5)
    assert (whole.flow_control, whole.idle_heartbeat) == (True, SECOND)
    assert (whole.max_ack_pending, whole.ack_wait) == (1000, 0)
    assert refused(**fields | {"max_ack_pending": -1})[0] == 10220
    assert refused(**fields | {"ack_wait": 5})[0] == 10221
    assert refused(**fields | {"max_deliver": 5})[0] == 10222


# --- names ---------------------------------------------------------------------------------------


def test_the_subject_decides_the_name() -> None:
    config = ConsumerConfig(durable_name="D", name="E")
    checks.name_by_subject(config, "D", "", durable=False)
    assert config.name == "D"


@pytest.mark.parametrize(
    ("config", "name", "tokens", "durable", "err_code"),
    [
        ({"name": "Q"}, "Q", "", True, 10018),
        ({"durable_name": "QQ"}, "Q", "", True, 10017),
        ({"durable_name": "QQ"}, "Q", "", False, 10017),
        ({"filter_subject": "c.0"}, "D", "c.1", False, 10131),
        ({}, "D", "c.1", False, 10131),
        ({"filter_subjects": ["c.1"]}, "D", "c.1", False, 10137),
    ],
)
def test_names_that_do_not_fit(
    config: dict[str, Any], name: str, tokens: str, durable: bool, err_code: int
) -> None:
    with pytest.raises(ApiError) as problem:
        checks.name_by_subject(ConsumerConfig(**config), name, tokens, durable=durable)
    assert problem.value.err_code == err_code


def test_a_durable_needs_a_name_in_the_subject() -> None:
    checks.check_unnamed(ConsumerConfig(name="n"))
    with pytest.raises(ApiError) as problem:
        checks.check_unnamed(ConsumerConfig(durable_name="QQ"))
    assert problem.value.err_code == 10020


def test_random_names() -> None:
    names = {checks.random_name() for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) == 8 and name.isalnum() for name in names)


# --- work queues ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "others", "err_code"),
    [
        ({"ack_policy": "all"}, [], 10098),
        ({"ack_policy": "none"}, [], 10098),
        ({"ack_policy": "explicit", "deliver_policy": "new"}, [{}], 10101),
        ({"ack_policy": "explicit"}, [{"filter_subject": "w.1"}], 10099),
        ({"ack_policy": "explicit", "filter_subject": "w.*"}, [{"filter_subject": "w.1"}], 10100),
        ({"ack_policy": "explicit", "filter_subject": "w.*"}, [{}], 10100),
        ({"ack_policy": "explicit", "filter_subject": "w.2"}, [{"filter_subject": "w.1"}], 0),
        ({"ack_policy": "explicit"}, [], 0),
    ],
)
def test_work_queues(fields: dict[str, Any], others: list[dict[str, Any]], err_code: int) -> None:
    found = 0
    try:
        checks.check_workqueue(
            ConsumerConfig(**fields), [ConsumerConfig(**other) for other in others]
        )
    except ApiError as problem:
        found = problem.err_code
    assert found == err_code


# --- updates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"deliver_policy": "new"}, "deliver policy can not be updated"),
        ({"opt_start_seq": 3}, "start sequence can not be updated"),
        ({"ack_policy": "none"}, "ack policy can not be updated"),
        ({"replay_policy": "original"}, "replay policy can not be updated"),
        ({"mem_storage": True}, "storage type can not be updated"),
        ({"deliver_subject": "q"}, "can not update pull consumer to push based"),
        ({"max_waiting": 5}, "max waiting can not be updated"),
    ],
)
def test_refused_updates(change: dict[str, Any], text: str) -> None:
    old = settled(durable_name="D", ack_policy="explicit")
    fields: dict[str, Any] = {"durable_name": "D", "ack_policy": "explicit", "max_waiting": 512}
    with pytest.raises(ApiError) as problem:
        checks.check_update(old, ConsumerConfig(**fields | change))
    assert (problem.value.err_code, problem.value.text) == (10012, text)


def test_permitted_updates() -> None:
    old = settled(durable_name="D", ack_policy="explicit")
    new = settled(
        durable_name="D",
        ack_policy="explicit",
        ack_wait=5,
        filter_subject="c.1",
        max_ack_pending=7,
        metadata={"a": "b"},
        headers_only=True,
    )
    checks.check_update(old, new)
    assert not checks.is_same(old, new)


def test_the_servers_metadata_makes_no_difference() -> None:
    old = settled(durable_name="D", metadata={"a": "b", "_nats.req.level": "0"})
    new = settled(durable_name="D", metadata={"a": "b", "_nats.ver": "9"})
    assert checks.is_same(old, new)
