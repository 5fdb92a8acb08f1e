"""Bodies of requests are read as Go reads them, with Go's errors."""

from __future__ import annotations

import json
import logging

import pytest

from broker.protocols.jetstream import limits
from broker.protocols.jetstream.api import decode as api_decode
from broker.protocols.jetstream.api.decode import decode, is_empty, is_json
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import (
    CreateConsumerRequest,
    MsgGetRequest,
    PauseRequest,
    PullRequest,
    StreamConfigRequest,
    StreamSource,
)

KEY = "looking for beginning of object key string"
NESTED = (
    "json: cannot unmarshal number into Go struct field"
    " StreamSource.StreamConfig.mirror.name of type string"
)
SOURCE = (
    "json: cannot unmarshal number 18446744073709551616 into Go struct field"
    " StreamSource.StreamConfig.sources.opt_start_seq of type uint64"
)
TIME = 'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"'
FIELD = "json: cannot unmarshal {} into Go struct field StreamConfigRequest.StreamConfig.{}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{bad", f"invalid character 'b' {KEY} at offset 2"),
        (b"junk", "invalid character 'j' looking for beginning of value at offset 1"),
        (b'{"name":"S"', "unexpected EOF"),
        (b"nul", "unexpected EOF"),
        (b'{"name":"S"} {', "unexpected EOF"),
        (b'{"name":"S"}x', "invalid character 'x' looking for beginning of value at offset 13"),
        (b'{"max_msgs":"x"} x', FIELD.format("string", "max_msgs of type int64")),
        (b'{"name":5,"bogus":1}', FIELD.format("number", "name of type string")),
        (b'{"bogus":1,"name":5}', 'json: unknown field "bogus"'),
        (b'{"name":5,"mirror":{"opt_start_time":"x"},"storage":"y"}', TIME),
        (b'{"name":5,"storage":"x"}', r'can not unmarshal "\"x\""'),
        (b'{"name":"S","bogus":1}', 'json: unknown field "bogus"'),
        (b'{"mirror":{"bogus":5}}', 'json: unknown field "bogus"'),
        (b'{"retention":"bogus"}', r'can not unmarshal "\"bogus\""'),
        (b'{"retention":5}', 'can not unmarshal "5"'),
        (b'{"retention":null}', 'can not unmarshal "null"'),
        (b'{"compression":null}', "unknown compression algorithm"),
        (b'{"compression":"zip"}', "unknown compression algorithm"),
        (b'{"compression":5}', FIELD.format("number", "compression of type string")),
        (
            b'{"pedantic":1}',
            FIELD.replace(".StreamConfig", "").format("number", "pedantic of type bool"),
        ),
        (b'{"mirror":5}', FIELD.format("number", "mirror of type server.StreamSource")),
        (b'{"sources":5}', FIELD.format("number", "sources of type []*server.StreamSource")),
        (b'{"metadata":{"a":5}}', FIELD.format("number", "metadata of type string")),
        (b'{"max_msgs":1e3}', FIELD.format("number 1e3", "max_msgs of type int64")),
        (b'{"mirror":{"opt_start_time":5}}', "Time.UnmarshalJSON: input is not a JSON string"),
        (b'{"max_msgs":"x"}', FIELD.format("string", "max_msgs of type int64")),
        (b'{"max_msgs":1.5}', FIELD.format("number 1.5", "max_msgs of type int64")),
        (b'{"first_seq":-1}', FIELD.format("number -1", "first_seq of type uint64")),
        (b'{"sealed":1}', FIELD.format("number", "sealed of type bool")),
        (
            b'{"max_msgs":9223372036854775808}',
            FIELD.format("number 9223372036854775808", "max_msgs of type int64"),
        ),
        (
            b'{"first_seq":18446744073709551616}',
            FIELD.format("number 18446744073709551616", "first_seq of type uint64"),
        ),
        (
            b'{"max_msg_size":2147483648}',
            FIELD.format("number 2147483648", "max_msg_size of type int32"),
        ),
        (
            b'{"sources":[{"opt_start_seq":18446744073709551616}]}',
            SOURCE,
        ),
        (
            b'{"mirror":{"name":5}}',
            NESTED,
        ),
        (b"[]", "json: cannot unmarshal array into Go value of type server.StreamConfigRequest"),
        (b"[" * 100_000, "exceeded max depth"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_go(body: bytes, problem: str) -> None:
    with pytest.raises(ApiError) as failure:
        decode(body, StreamConfigRequest)
    assert failure.value.text == f"invalid JSON: {problem}"
    assert (failure.value.err_code, failure.value.code) == (10025, 400)


def test_names_match_in_any_case_and_null_changes_nothing() -> None:
    body = b'{"Name":"S","MAX_MSGS":null,"Subjects":["a",null],"mirror":null,"storage":"memory"}'
    found = decode(body, StreamConfigRequest)
    assert (found.name, found.max_msgs, found.subjects) == ("S", 0, ["a", ""])
    assert (found.mirror, found.storage) == (None, "memory")


def test_the_largest_numbers() -> None:
    body = b'{"first_seq":18446744073709551615,"max_msgs":-9223372036854775808}'
    found = decode(body, StreamConfigRequest)
    assert (found.first_seq, found.max_msgs) == (2**64 - 1, -(2**63))


def test_times_are_written_in_utc() -> None:
    body = b'{"name":"S","sources":[{"name":"A","opt_start_time":"2026-01-01T02:00:00.50+02:00"}]}'
    found = decode(body, StreamConfigRequest)
    assert found.sources == [StreamSource(name="A", opt_start_time="2026-01-01T00:00:00.5Z")]


def test_a_text_that_is_no_time() -> None:
    with pytest.raises(ApiError, match='parsing time "bad" as'):
        decode(b'{"start_time":"bad"}', MsgGetRequest)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ' as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006"'),
        ("2026-01-01", ' as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T"'),
        ("2026-13-01T00:00:00Z", ": month out of range"),
        ("2026-02-30T00:00:00Z", ": day out of range"),
        ("2026-01-01T24:00:00Z", ": hour out of range"),
        ("2026-01-01T00:00:00z", ' as "2006-01-02T15:04:05Z07:00": cannot parse "z" as "Z07:00"'),
        ("2026-01-01T00:00:00+25:00", ": time zone offset hour out of range"),
        ("2026-01-01T00:00:00Zx", ': extra text: "x"'),
    ],
)
def test_the_error_of_a_time(text: str, problem: str) -> None:
    with pytest.raises(ApiError) as failure:
        decode(json.dumps({"pause_until": text}).encode(), PauseRequest)
    assert failure.value.text == f"invalid JSON: parsing time {json.dumps(text)}{problem}"


@pytest.mark.parametrize("text", ["2026-01-01T1:00:00Z", "2026-01-01T01:00:00,0Z"])
def test_other_forms_of_times(text: str) -> None:
    found = decode(json.dumps({"pause_until": text}).encode(), PauseRequest)
    assert found.pause_until == "2026-01-01T01:00:00Z"


def test_null_in_a_map_is_empty() -> None:
    assert decode(b'{"metadata":{"a":null}}', StreamConfigRequest).metadata == {"a": ""}


def test_lone_surrogates_are_replaced() -> None:
    body = rb'{"description":"a\ud800","metadata":{"\udc80":"\udfff"},"subjects":["\ud800\udc00"]}'
    found = decode(body, StreamConfigRequest)
    assert (found.description, found.metadata) == ("a\ufffd", {"\ufffd": "\ufffd"})
    assert found.subjects == ["\U00010000"]
    with pytest.raises(ApiError, match='unknown field "\ufffd"'):
        decode(rb'{"\ud800":1}', StreamConfigRequest)


def test_discard_in_any_case() -> None:
    assert decode(b'{"discard":"NEW"}', StreamConfigRequest).discard == "new"


def test_several_objects_are_merged() -> None:
    found = decode(b'{"name":"S","max_msgs":1} {"max_msgs":2}', StreamConfigRequest)
    assert (found.name, found.max_msgs) == ("S", 2)


@pytest.mark.parametrize(
    ("head", "item", "most"),
    [
        (b'{"sources":[', b'{"name":"A"},', limits.JS_REQUEST_OBJECTS_MAX - 1),
        (b'{"sources":[', b"null,", limits.JS_REQUEST_OBJECTS_MAX - 1),
        (b'{"subjects":[', b'"a",', limits.JS_REQUEST_VALUES_MAX),
    ],
)
def test_a_body_of_very_many_values_is_refused(head: bytes, item: bytes, most: int) -> None:
    """The loop decodes them: each takes time in which other clients wait."""
    found = decode(head + (item * most)[:-1] + b"]}", StreamConfigRequest)
    assert len(found.sources or found.subjects) == most
    with pytest.raises(ApiError, match="more than 8192 values or 4096 objects"):
        decode(head + (item * (most + 1))[:-1] + b"]}", StreamConfigRequest)


@pytest.mark.parametrize("body", [b" ", b"\r\n", b' {"batch":1} {"batch":2}\n'])
def test_blanks_around_objects(body: bytes) -> None:
    assert decode(body, PullRequest).batch == (2 if body.strip() else 0)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"action":"x"}', 'unknown consumer action: "x"'),
        (b'{"action":null}', "unknown consumer action: null"),
        (b'{"config":{"priority_policy":""}}', 'unknown priority policy: ""'),
        (
            b'{"config":{"backoff":5}}',
            (
                "json: cannot unmarshal number into Go struct field"
                " ConsumerConfig.config.backoff of type []time.Duration"
            ),
        ),
    ],
)
def test_errors_of_consumers(body: bytes, problem: str) -> None:
    with pytest.raises(ApiError) as failure:
        decode(body, CreateConsumerRequest)
    assert failure.value.text == f"invalid JSON: {problem}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"batch":1', "unexpected end of JSON input"),
        (b"{} {}", "invalid character '{' after top-level value"),
        (
            b'{"batch":"x"}',
            (
                "json: cannot unmarshal string into Go struct field"
                " JSApiConsumerGetNextRequest.batch of type int"
            ),
        ),
        (
            b'{"group":5}',
            (
                "json: cannot unmarshal number into Go struct field"
                " JSApiConsumerGetNextRequest.PriorityGroup.group of type string"
            ),
        ),
    ],
)
def test_errors_of_requests_that_are_one_object(body: bytes, problem: str) -> None:
    with pytest.raises(ApiError) as failure:
        decode(body, PullRequest, strict=False)
    assert failure.value.text == f"invalid JSON: {problem}"


@pytest.fixture
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_decode, "_logged", set())


@pytest.mark.usefixtures("nothing_logged")
def test_unknown_fields_may_be_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "broker.jetstream"):
        for _ in range(2):  # the second one is not logged
            found = decode(b'{"name":"S","bogus":{"a":1}}', StreamConfigRequest, strict=False)
            assert found.name == "S"
    (line,) = caplog.messages
    assert line == 'a request has the unknown field "bogus", which is ignored'


@pytest.mark.usefixtures("nothing_logged")
def test_invented_fields_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps({f"{number}{'x' * 1000}": 1 for number in range(1000)}).encode()
    with caplog.at_level(logging.WARNING, "broker.jetstream"):
        decode(body, PullRequest, strict=False)
    assert len(caplog.messages) == 100
    assert len(caplog.messages[0]) < 200


@pytest.mark.parametrize("body", [b"", b"{}", b" {} ", b"{ }", b"{\n}"])
def test_empty_bodies(body: bytes) -> None:
    assert is_empty(body)


@pytest.mark.parametrize("body", [b"x", b"  \r\n", b'{"a":1}', b"[]", b"{", b"{}}"])
def test_bodies_that_are_not_empty(body: bytes) -> None:
    assert not is_empty(body)


def test_optional_bodies_begin_like_json() -> None:
    assert [is_json(body) for body in (b" {", b"[", b"junk", b"", b'"x"')] == [
        True, True, False, False, False,
    ]  # fmt: skip
