"""Configurations and answers are written as nats-server 2.15 writes them."""

from __future__ import annotations

import json

import msgspec
import pytest

from broker.protocols.jetstream import errors, structs
from broker.protocols.jetstream.errors import ApiError

STREAM = (
    '{"name":"S","subjects":["S"],"retention":"limits","max_consumers":-1,"max_msgs":-1,'
    '"max_bytes":-1,"max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old",'
    '"storage":"file","num_replicas":1,"duplicate_window":120000000000,"compression":"none",'
    '"allow_direct":false,"mirror_direct":false,"sealed":false,"deny_delete":false,'
    '"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,'
    '"metadata":{"_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.2"}}'
)
CONSUMER = (
    '{"durable_name":"bc","name":"bc","deliver_policy":"all","ack_policy":"all",'
    '"ack_wait":30000000000,"max_deliver":-1,"replay_policy":"instant","max_waiting":512,'
    '"max_ack_pending":1000,"num_replicas":0,"metadata":{"a":"1","b":"2"}}'
)

KEYS = (
    "name description subjects retention max_consumers max_msgs max_bytes max_age"
    " max_msgs_per_subject max_msg_size discard storage num_replicas no_ack duplicate_window"
    " placement mirror sources compression first_seq subject_transform republish allow_direct"
    " mirror_direct discard_new_per_subject sealed deny_delete deny_purge allow_rollup_hdrs"
    " consumer_limits allow_msg_ttl subject_delete_marker_ttl allow_msg_counter allow_atomic"
    " allow_msg_schedules persist_mode allow_batched metadata"
)


@pytest.mark.parametrize(
    ("text", "kind"), [(STREAM, structs.StreamConfig), (CONSUMER, structs.ConsumerConfig)]
)
def test_a_recorded_configuration_is_written_as_it_was_read(
    text: str, kind: type[msgspec.Struct]
) -> None:
    assert structs.encode(msgspec.json.decode(text, type=kind)).decode() == text


def test_the_order_of_all_keys_of_a_stream() -> None:
    config = structs.StreamConfig(
        name="S",
        description="d",
        subjects=["a"],
        no_ack=True,
        duplicate_window=1,
        placement=structs.Placement(tags=["x"]),
        mirror=structs.StreamSource(name="M"),
        sources=[structs.StreamSource(name="N")],
        first_seq=5,
        subject_transform=structs.SubjectTransform(src="a", dest="b"),
        republish=structs.RePublish(dest="c"),
        discard_new_per_subject=True,
        subject_delete_marker_ttl=7,
        allow_msg_counter=True,
        allow_atomic=True,
        allow_msg_schedules=True,
        persist_mode="async",
        allow_batched=True,
        metadata={"b": "1", "a": "2"},
    )
    found = json.loads(structs.encode(config))
    assert " ".join(found) == KEYS
    assert list(found["metadata"]) == ["a", "b"]
    assert found["republish"] == {"dest": "c"}


def test_characters_with_a_meaning_in_html_are_escaped() -> None:
    text = structs.encode(structs.StreamConfig(name="S", subjects=["a.>"], description="<&>"))
    assert b'"description":"\\u003c\\u0026\\u003e","subjects":["a.\\u003e"]' in text
    assert json.loads(text)["subjects"] == ["a.>"]


def test_an_answer_begins_with_its_type_and_its_error() -> None:
    problem = ApiError(errors.STREAM_NOT_FOUND)
    assert structs.answer("stream_info", structs.Page(), error=problem) == (
        b'{"type":"io.nats.jetstream.api.v1.stream_info_response","error":{"code":404,'
        b'"err_code":10059,"description":"stream not found"},"total":0,"offset":0,"limit":0}'
    )
    done = structs.answer("stream_delete", structs.Success(success=True))
    assert done == b'{"type":"io.nats.jetstream.api.v1.stream_delete_response","success":true}'
    bare = structs.answer("consumer_unpin")
    assert bare == b'{"type":"io.nats.jetstream.api.v1.consumer_unpin_response"}'


def test_names_are_null_and_lists_are_empty_without_streams() -> None:
    assert structs.encode(structs.StreamNamesAnswer(limit=1024)).endswith(b'"streams":null}')
    assert structs.encode(structs.StreamListAnswer(limit=256)).endswith(b'"streams":[]}')


def test_account_info_of_a_fresh_account() -> None:
    info = structs.AccountInfo(api=structs.ApiStats(level=5))
    assert structs.encode(info).decode() == (
        '{"memory":0,"storage":0,"reserved_memory":0,"reserved_storage":0,"streams":0,'
        '"consumers":0,"limits":{"max_memory":-1,"max_storage":-1,"max_streams":-1,'
        '"max_consumers":-1,"max_ack_pending":-1,"memory_max_stream_bytes":-1,'
        '"storage_max_stream_bytes":-1,"max_bytes_required":false},'
        '"api":{"level":5,"total":0,"errors":0}}'
    )


@pytest.mark.parametrize(
    ("wall_ns", "text"),
    [
        (0, "0001-01-01T00:00:00Z"),
        (1_795_322_264_153_023_617, "2026-11-22T04:37:44.153023617Z"),
        (1_795_322_264_153_000_000, "2026-11-22T04:37:44.153Z"),
        (1_795_322_264_000_000_000, "2026-11-22T04:37:44Z"),
    ],
)
def test_times_have_no_trailing_zeros(wall_ns: int, text: str) -> None:
    assert structs.time_text(wall_ns) == text
    assert structs.time_ns(text) == wall_ns


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-11-22T06:37:44.1+02:00", "2026-11-22T04:37:44.1Z"),
        ("2026-11-21T23:37:44-05:00", "2026-11-22T04:37:44Z"),
    ],
)
def test_times_with_an_offset(text: str, same: str) -> None:
    assert structs.time_ns(text) == structs.time_ns(same)


@pytest.mark.parametrize("text", ["x", "2026-11-22", "2026-11-22T04:37:44", "2026-13-22T04:37:44Z"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text itself
        structs.time_ns(text)


def test_a_copy_shares_nothing() -> None:
    config = structs.StreamConfig(name="S", subjects=["a"], metadata={"a": "b"})
    other = structs.copied(config)
    assert other == config
    other.subjects.append("b")
    other.metadata["c"] = "d"
    assert (config.subjects, config.metadata) == (["a"], {"a": "b"})
