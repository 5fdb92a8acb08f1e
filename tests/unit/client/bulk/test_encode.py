"""Rows to blocks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.clients.blocks import Stored, read_block
from support.clients.frames import header_block

from broker.client.bulk.decode_python import headers_of
from broker.client.bulk.errors import Unstorable

pa = pytest.importorskip("pyarrow")
from broker.client.bulk.encode import blocks  # noqa: E402
from broker.client.bulk.packing import Column, Packer  # noqa: E402

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
AT_NS = 1893553445678901000


def batch(**columns: Any) -> pa.RecordBatch:
    made = {
        name: column if isinstance(column, pa.Array) else pa.array(column)
        for name, column in columns.items()
    }
    return pa.RecordBatch.from_pydict(made)


def stored(rows: pa.RecordBatch, **more: Any) -> dict[str, list[Stored]]:
    found: dict[str, list[Stored]] = {}
    for topic, block in blocks(rows, **more):
        found.setdefault(topic, []).extend(read_block(block))
    return found


def test_all_columns() -> None:
    rows = batch(
        value=["one", "two"],
        topic=["t\u00e9", "t\u00e9"],
        subject=["a.b", None],
        key=pa.array([b"\0k", None]),
        headers=pa.array([[("A", b"\xff"), ("B", b"")], None], HEADERS),
        messageId=["id", None],
        notBefore=pa.array([AT, None], pa.timestamp("us", "UTC")),
        other=[1, 2],
    )
    block = header_block((b"K", b"\0k"), (b"Nats-Msg-Id", b"id"), (b"A", b"\xff"), (b"B", b""))
    assert stored(rows, key_header="K") == {
        "t\u00e9": [Stored(b"a.b", block, b"one", AT_NS), Stored(b"", b"", b"two", 0)]
    }


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.string_view()]
)
def test_types_of_values(kind: Any) -> None:
    rows = batch(value=pa.array(["a", "", "c"], pa.string()).cast(kind))
    assert [s.body for s in stored(rows, topic="t")["t"]] == [b"a", b"", b"c"]
    assert [s.body for s in stored(rows.slice(1), topic="t")["t"]] == [b"", b"c"]


def test_topics_take_turns() -> None:
    topics = ["a", "b", "a", "c" * 300, "b", "a"]
    rows = batch(value=[str(i) for i in range(6)], topic=topics)
    found = {topic: [s.body for s in all_] for topic, all_ in stored(rows).items()}
    assert found == {"a": [b"0", b"2", b"5"], "b": [b"1", b"4"], "c" * 300: [b"3"]}
    assert list(found) == ["a", "b", "c" * 300]
    assert list(stored(rows, topic="all")) == ["all"]


def test_very_many_topics() -> None:
    rows = batch(value=["x"] * 5000, topic=[f"t{i % 2500}" for i in range(5000)])
    found = stored(rows)
    assert {len(all_) for all_ in found.values()} == {2}
    assert list(found) == [f"t{i}" for i in range(2500)]


def test_blocks_are_of_the_size_wanted() -> None:
    rows = batch(value=[b"x" * 1000] * 50)
    sizes = [
        (len(block), len(read_block(block)))
        for _, block in blocks(rows, topic="t", max_bytes=10_000)
    ]
    assert sizes == [(24 + 9 * 1024, 9)] * 5 + [(24 + 5 * 1024, 5)]
    large = batch(value=[b"x" * 20_000, b""])
    sizes = [len(read_block(block)) for _, block in blocks(large, topic="t", max_bytes=10_000)]
    assert sizes == [1, 1]


def test_no_rows() -> None:
    assert stored(batch(value=pa.array([], pa.string()), topic=pa.array([], pa.string()))) == {}


def test_a_subject_that_is_the_topic_is_not_stored() -> None:
    rows = batch(value=["x", "y"], topic=["t", "t"], subject=["t", "u"])
    assert [s.subject for s in stored(rows)["t"]] == [b"", b"u"]
    assert [s.subject for s in stored(rows, topic="u")["u"]] == [b"t", b""]


def test_key_and_id_win_over_headers() -> None:
    headers = pa.array([[("K", b"old"), ("Nats-Msg-Id", b"old"), ("X", b"x")]] * 2, HEADERS)
    rows = batch(value=["x", "y"], headers=headers, key=["new", None], messageId=["id", None])
    first, second = stored(rows, topic="t", key_header="K")["t"]
    assert first.headers == header_block((b"K", b"new"), (b"Nats-Msg-Id", b"id"), (b"X", b"x"))
    assert second.headers == header_block((b"K", b"old"), (b"Nats-Msg-Id", b"old"), (b"X", b"x"))


UNSTORABLE: dict[str, tuple[dict[str, Any], str]] = {
    "no value": ({"value": ["a", None]}, "row 1: the value is null"),
    "no topic": ({"topic": ["t", None]}, "row 1: the topic is missing"),
    "empty topic": ({"topic": ["", "t"]}, "row 0: the topic is missing"),
    "subject": ({"subject": ["a b", "c"]}, "row 0: the subject has a space"),
    "line in subject": ({"subject": ["a", "b\r\n"]}, "row 1: the subject has a space"),
    "long subject": ({"subject": ["a", "b" * 65536]}, "row 1: the subject has more than 65535"),
    "key": ({"key": ["a", "b\nc"]}, "row 1: the key has a line break"),
    "blank key": ({"key": [" a", "b"]}, "row 0: the key has a line break"),
    "id": ({"messageId": ["a\rb", "b"]}, "row 0: the message id"),
    "large": ({"value": ["a", b"b" * (16 << 20)]}, "row 1: the record exceeds the size of a block"),
    "late": (
        {"notBefore": pa.array([0, 2**62], pa.timestamp("us", "UTC"))},
        "row 1: notBefore is beyond",
    ),
    "numbers": ({"value": [1, 2]}, "column value is int64"),
    "nothing": ({"value": pa.nulls(2)}, "the column value is null"),
}
BAD_HEADERS = [
    (("", b"x"), "the name of a header"),
    ((None, b"x"), "the name of a header"),
    (("a:b", b"x"), "the name of a header"),
    (("a\n", b"x"), "the name of a header"),
    (("a ", b"x"), "the name of a header"),
    (("a", b"x\r"), "the value of a header"),
    (("a", b"\tx"), "the value of a header"),
    (("a", b"x" * (16 << 20)), "the headers have more than 16 MiB"),
]


@pytest.mark.parametrize("what", UNSTORABLE)
def test_what_cannot_be_stored(what: str) -> None:
    change, said = UNSTORABLE[what]
    rows = batch(**{"value": ["a", "b"], "topic": ["t", "t"]} | change)
    with pytest.raises(Unstorable, match=said):
        stored(rows, key_header="K")


@pytest.mark.parametrize(("pair", "said"), BAD_HEADERS)
def test_headers_that_cannot_be_stored(pair: tuple[str, bytes], said: str) -> None:
    rows = batch(value=["a", "b"], headers=pa.array([[("ok", b"")], [("ok", b""), pair]], HEADERS))
    with pytest.raises(Unstorable, match=f"row 1: {said}"):
        stored(rows, topic="t")


@given(st.text("A:\t \r\nü", max_size=40))
@example("C : d\r\n E: f\r\nG: h\nI: j\r\nK: l\r\r\n")
def test_what_was_read_can_be_stored(lines: str) -> None:
    """Others may have written headers that we would not write: a copy has them as they are."""
    pairs = list(headers_of(b"NATS/1.0\r\n" + lines.encode() + b"\r\n\r\n"))
    column = pa.array([[(name.decode(), value) for name, value in pairs]], HEADERS)
    rows = batch(value=["a"], headers=column)
    (record,) = stored(rows, topic="t", as_read=True)["t"]
    assert list(headers_of(record.headers)) == pairs


def test_what_could_not_be_read_back_is_not_stored() -> None:
    for pair in (("", b""), ("a:b", b""), ("a\r\nb", b""), ("a", b"\r\n"), ("a", b" b")):
        rows = batch(value=["a"], headers=pa.array([[pair]], HEADERS))
        with pytest.raises(Unstorable):
            stored(rows, topic="t", as_read=True)


def test_columns_that_are_missing() -> None:
    with pytest.raises(Unstorable, match="the column value is missing"):
        stored(batch(topic=["t"]))
    with pytest.raises(Unstorable, match="give a column topic"):
        stored(batch(value=["t"]))
    with pytest.raises(Unstorable, match="a column key needs key_header"):
        stored(batch(value=["t", "u"], key=["k", None]), topic="t")
    assert stored(batch(value=["t"], key=pa.array([None], pa.binary())), topic="t")
    with pytest.raises(Unstorable, match="cannot be stored in the header"):
        stored(batch(value=["t"], key=["k"]), topic="t", key_header="a:b")
    with pytest.raises(ValueError, match="max_bytes"):
        stored(batch(value=["t"]), topic="t", max_bytes=(16 << 20) + 1)


def test_headers_that_are_null() -> None:
    headers = pa.array([[None, ("A", None)], [], None, [("B", b"b")]], HEADERS)
    rows = batch(value=["a"] * 4, headers=headers)
    found = [s.headers for s in stored(rows, topic="t")["t"]]
    assert found == [header_block((b"A", b"")), b"", b"", header_block((b"B", b"b"))]
    assert [s.headers for s in stored(rows.slice(2), topic="t")["t"]] == found[2:]


def offsets(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


@pytest.mark.parametrize(
    "args",
    [
        (2, 0, None, offsets(0, 1), b"x"),
        (2, 1, None, offsets(0, 1, 1), b"x"),
        (1, 0, None, None, b"x"),
        (1, 0, None, offsets(0, 2), b"x"),
        (1, 0, None, offsets(-1, 1), b"x"),
        (2, 0, None, offsets(0, 1, 0), b"x"),
        (9, 0, b"\xff", offsets(*range(10)), b"x" * 9),
        (1, 0, None, offsets(0, 3), None, 2),
    ],
)
def test_buffers_that_are_not_as_they_say(args: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="array"):
        Column(*args)


def test_columns_that_do_not_fit_each_other() -> None:
    one, two = (Column(n, 0, None, offsets(*range(n + 1)), b"xx") for n in (1, 2))
    bits = Column(0, 0, b"\1", None, None)
    lists = Column(1, 0, None, offsets(0, 2), None, 2)
    for wrong in (
        {"topic": two},
        {"headers": (lists, bits, one, two)},
        {"headers": (lists, bits, two, one)},
        {"headers": (lists, Column(0, 7, b"\1", None, None), two, two)},
        {"not_before": (0, None, bytes(7))},
        {"not_before": (0, b"", bytes(8))},
    ):
        with pytest.raises(ValueError, match=r"columns|buffer"):
            Packer(one, one_topic=b"t", **wrong)
