"""Delivery events to Arrow columns: against a plain reader, and with bytes that mean no good."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.delivery_events import HEAD, KINDS, REASONS, ROW, read_events

pa = pytest.importorskip("pyarrow")

from broker.client.bulk import arrow_events  # noqa: E402
from broker.client.bulk.events import decode  # noqa: E402

# Making them takes most of the time, with sanitizers even more.
Row = tuple[int, int, int, int, int, int, int]
NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.integers(0, 2**63 - 1)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(st.tuples(NAME, NAME), min_size=1, max_size=5))
    row = st.tuples(
        NUMBER,
        st.one_of(st.just(-1), NUMBER),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, len(names) - 1),
        st.integers(0, 0xFFFF),
        st.sampled_from(sorted(KINDS)),
        st.integers(0, len(REASONS) - 1),
    )
    rows = [(*r[:6], r[6] if r[5] == 5 else 0) for r in draw(st.lists(row, max_size=20))]
    lost = draw(st.sampled_from([0, 0, 0, 1, 77, 2**64 - 1]))
    return record(rows, names, lost)


def record(rows: list[Row], names: list[tuple[str, str]], lost: int = 0) -> bytes:
    pairs = b"".join(
        struct.pack("<HH", len(topic), len(name)) + topic + name
        for topic, name in ((t.encode(), n.encode()) for t, n in names)
    )
    head = HEAD.pack(b"TWEVENT1", len(rows), len(names), lost, len(pairs))
    return head + b"".join(ROW.pack(*row) for row in rows) + pairs


def expected(bodies: list[bytes]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for body in bodies:
        events, lost = read_events(body)
        if lost and events:
            count = min(lost, 2**63 - 1)
            found.append((None, None, count, 0, "lost", None, None, events[0].time_ns // 1000))
        found += [
            (e.topic, e.channel, e.seq, e.attempt, e.event, e.reason or None,
             None if e.latency_ns < 0 else e.latency_ns, e.time_ns // 1000)
            for e in events
        ]  # fmt: skip
    return found


def rows_of(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    batch.validate(full=True)
    plain = batch.set_column(7, "time", batch.column(7).cast(pa.int64()))
    return [tuple(row.values()) for row in plain.to_pylist()]


@given(st.lists(records(), max_size=6), st.lists(st.binary(max_size=80), max_size=3))
def test_as_a_plain_reader_says(bodies: list[bytes], foreign: list[bytes]) -> None:
    decoded = arrow_events.events_of(pa.array([*foreign, *bodies], pa.binary()))
    assert rows_of(decoded.batch) == expected(bodies)
    assert (decoded.foreign, decoded.bad) == (len(foreign), 0)
    assert decoded.batch.schema == arrow_events.SCHEMA


@given(st.lists(records(), min_size=3, max_size=6))
def test_a_slice_of_a_column_with_nulls(bodies: list[bytes]) -> None:
    array = pa.array([bodies[0], None, *bodies[1:]], pa.binary())
    assert rows_of(arrow_events.events_of(array.slice(1)).batch) == expected(bodies[1:])
    large = pa.array(bodies, pa.large_binary())
    assert rows_of(arrow_events.events_of(large).batch) == expected(bodies)


@given(records(), st.data())
def test_bytes_that_were_changed(body: bytes, data: st.DataObject) -> None:
    """Whatever they are: the record counts as a whole or not at all, and nobody reads beyond it."""
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    for one in (bytes(changed), bytes(changed[:cut])):
        decoded = arrow_events.events_of(pa.array([one, body], pa.binary()))
        decoded.batch.validate(full=True)
        good = expected([body])
        assert rows_of(decoded.batch)[-len(good) :] == good or not good
        if decoded.foreign + decoded.bad:
            assert rows_of(decoded.batch) == good


@pytest.mark.parametrize(
    ("at", "value"),
    [(8, 2**32 - 1), (8, 2), (12, 2**32 - 1), (12, 2), (12, 0), (24, 0), (24, 2**32 - 1)],
)
def test_numbers_that_do_not_fit(at: int, value: int) -> None:
    body = bytearray(record([(1, 2, 3, 0, 1, 4, 0)], [("t", "c")]))
    struct.pack_into("<I", body, at, value)
    decoded = arrow_events.events_of(pa.array([bytes(body)], pa.binary()))
    assert (decoded.batch.num_rows, decoded.foreign, decoded.bad) == (0, 0, 1)


@pytest.mark.parametrize(
    "row",
    [
        (2**63, 0, 0, 0, 1, 4, 0),
        (1, 0, 0, 1, 1, 4, 0),
        (1, 0, 0, 0, 1, 0, 0),
        (1, 0, 0, 0, 1, 6, 0),
        (1, 0, 0, 0, 1, 5, 4),
    ],
)
def test_rows_that_mean_nothing(row: Row) -> None:
    decoded = arrow_events.events_of(pa.array([record([row], [("t", "c")])], pa.binary()))
    assert (decoded.batch.num_rows, decoded.bad) == (0, 1)


def test_names_that_are_not_utf8() -> None:
    body = record([(1, 2, 3, 0, 1, 4, 0)], [("ab", "c")]).replace(b"ab", b"\xff\xfe")
    (row,) = arrow_events.events_of(pa.array([body], pa.binary())).batch.to_pylist()
    assert row["topic"] == "\N{REPLACEMENT CHARACTER}" * 2


@given(st.binary(max_size=24), st.binary(max_size=40), st.integers(0, 5), st.integers(0, 5))
@example(struct.pack("<ii", 0, 100), bytes(40), 0, 1)
@example(struct.pack("<iii", 0, 30, 10), bytes(40), 0, 2)
@example(struct.pack("<ii", -8, 8), bytes(40), 0, 1)
def test_columns_that_are_none(offsets: bytes, data: bytes, start: int, count: int) -> None:
    numbers = struct.unpack(f"<{len(offsets) // 4}i", offsets[: len(offsets) // 4 * 4])
    used = numbers[start : start + count + 1]
    right = len(used) == count + 1 and list(used) == sorted(used)
    if right and used[0] >= 0 and used[-1] <= len(data):
        assert decode(offsets, data, start, count).rows == 0
    else:
        with pytest.raises(ValueError, match=r"column|offsets"):
            decode(offsets, data, start, count)
