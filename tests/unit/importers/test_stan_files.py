"""Reading file stores of NATS Streaming: recorded ones, and damaged ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.stan.stores import (
    VERSION,
    message,
    put_identity,
    put_slice,
    record,
    recorded_store,
)

from broker.base.problem import Problem
from broker.importers.stan_files import (
    Extent,
    Indexed,
    Info,
    SourceError,
    Sub,
    channel_names,
    cursors_of,
    indexed,
    looks_encrypted,
    messages,
    read_clients,
    read_info,
    read_subs,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    put_identity(folder)
    return folder


def read(store: Path, channel: str = "c") -> tuple[list[int], list[str]]:
    """Sequences, and what is wrong: `file: offset N: reason`."""
    problems: list[Problem] = []
    found = [stored.sequence for stored in messages(store, channel, problems)]
    return found, [str(p._replace(file=Path(p.file).name)) for p in problems]


def test_what_an_original_has_written(tmp_path: Path) -> None:
    store = recorded_store("orders", tmp_path)
    problems: list[Problem] = []
    assert read_info(store) == Info("test-cluster", "")
    assert channel_names(store, problems) == ["orders", "other"]
    found = list(messages(store, "orders", problems))
    assert [stored.sequence for stored in found] == list(range(11, 41))
    assert [stored.body for stored in found] == [b"order %d" % i for i in range(11, 41)]
    assert found == sorted(found, key=lambda stored: stored.timestamp_ns)
    assert found[0].timestamp_ns > 1_700_000_000 * 10**9
    assert indexed(store, "orders") == Indexed(30, 40, True)
    [other] = messages(store, "other", problems)
    assert (other.body, other.reply) == (b"with a reply", "answers.here")
    clients = read_clients(store, problems)
    assert list(clients) == ["stay"]
    assert clients["stay"].hb_inbox.encode() == bytes.fromhex(clients["stay"].conn_id)
    subs = {sub.durable + sub.queue: sub for sub in read_subs(store, "orders", problems)}
    assert {name: sub.last_sent for name, sub in subs.items() if name != "crew"} == {
        "d": 40, "dqdq:g": 40, "live": 40, "": 40
    }  # fmt: skip
    assert {name: sub.unacked for name, sub in subs.items() if name != "crew"} == {
        "d": {33, 35, 40}, "dqdq:g": {40}, "live": {39}, "": set(range(11, 40))
    }  # fmt: skip
    assert (subs["d"].is_closed, subs["live"].is_closed) == (True, False)
    assert problems == []


def test_encryption_is_recognised(tmp_path: Path, store: Path) -> None:
    assert looks_encrypted(recorded_store("secret", tmp_path / "recorded"), "secret")
    put_slice(store, "c", 1, [message(i, "c", b"\1" + bytes(40)) for i in range(1, 9)])
    assert not looks_encrypted(store, "c")
    # only the newest ones are
    nonces = [b"\2" + bytes(4) + i.to_bytes(8, "big") + bytes(20) for i in range(9, 12)]
    put_slice(store, "c", 2, [message(i, "c", nonces[i - 9]) for i in range(9, 12)])
    assert looks_encrypted(store, "c")


@pytest.mark.parametrize("place", ["length", "crc", "body", "sequence"])
@pytest.mark.parametrize("which", [1, 2, 5])
def test_a_flipped_byte_costs_one_message(store: Path, place: str, which: int) -> None:
    parts = [message(i, "c", b"body %d" % i) for i in range(1, 6)]
    path = put_slice(store, "c", 1, parts)
    data = bytearray(path.read_bytes())
    start = len(VERSION) + sum(map(len, parts[: which - 1]))
    data[start + {"length": 1, "crc": 5, "body": len(parts[0]) - 1, "sequence": 9}[place]] ^= 0x10
    path.write_bytes(data)
    found, problems = read(store)
    assert found == [i for i in range(1, 6) if i != which]
    [problem] = problems
    assert problem.startswith(f"msgs.1.dat: offset {start}: ")
    assert f"{len(parts[which - 1])} bytes" in problem


@pytest.mark.parametrize("cut", [1, 5, 8, 12])
def test_a_torn_tail(store: Path, cut: int) -> None:
    parts = [message(i, "c") for i in range(1, 4)]
    path = put_slice(store, "c", 1, parts)
    path.write_bytes(path.read_bytes()[:-cut])
    start = len(VERSION) + len(parts[0]) * 2
    left = len(parts[2]) - cut
    reason = f"a record is incomplete or damaged; {left} bytes not read"
    assert read(store) == ([1, 2], [f"msgs.1.dat: offset {start}: {reason}"])


def test_zeros_at_the_end_and_in_the_middle(store: Path) -> None:
    parts = [message(i, "c") for i in range(1, 4)]
    path = put_slice(store, "c", 1, parts)
    path.write_bytes(path.read_bytes() + bytes(5000))
    size = len(parts[0])
    assert read(store) == (
        [1, 2, 3], [f"msgs.1.dat: offset {4 + 3 * size}: zeros follow; 5000 bytes not read"]
    )  # fmt: skip
    path.write_bytes(VERSION + parts[0] + bytes(2_500_000) + parts[1] + parts[2])
    found, problems = read(store)
    assert (found, len(problems)) == ([1, 2, 3], 1)
    assert "2500000 bytes skipped" in problems[0]


def test_what_a_crash_left_behind_the_index(store: Path) -> None:
    parts = [message(1, "c"), message(2, "c"), message(3, "c", b"never acknowledged")]
    path = put_slice(store, "c", 1, parts)
    index = path.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:-32])
    # nothing came after it: it was in the file, so it counts
    assert read(store) == ([1, 2, 3], [])
    # its sequence was given again to another message, and that one is in the index
    put_slice(store, "c", 1, [*parts, message(3, "c", b"new"), message(4, "c")])
    entries = index.read_bytes()
    index.write_bytes(entries[: 4 + 2 * 32] + entries[4 + 3 * 32 :])
    problems: list[Problem] = []
    found = [(m.sequence, m.body) for m in messages(store, "c", problems)]
    assert found == [(1, b"x"), (2, b"x"), (3, b"new"), (4, b"x")]
    assert problems == []


def test_other_versions_and_files_that_are_missing(store: Path) -> None:
    path = put_slice(store, "c", 1, [message(1, "c")])
    put_slice(store, "c", 2, [message(2, "c")])
    (store / "c" / "msgs.x.dat").touch()
    path.write_bytes(b"\2\0\0\0" + path.read_bytes()[4:])
    found, problems = read(store)
    assert found == [2]
    assert sorted(problems) == [
        "msgs.1.dat: offset 0: file version 2; this build reads 1",
        "msgs.x.dat: offset 0: its name has no number: not read",
    ]
    assert indexed(store, "c") == Indexed(2, 2, True)
    path.with_suffix(".idx").unlink()
    assert indexed(store, "c") == Indexed(1, 2, False)
    (store / "lost+found").mkdir()
    problems: list[Problem] = []
    assert channel_names(store, problems) == ["c"]
    assert "lost+found" in problems[0].file
    for content, text in ((b"\2\0\0\0", "file version 2"), (b"", "before its version")):
        (store / "server.dat").write_bytes(content)
        with pytest.raises(SourceError, match=text):
            read_info(store)
    (store / "server.dat").unlink()
    with pytest.raises(SourceError, match="is not a file store"):
        read_info(store)


def test_a_damaged_identity(store: Path) -> None:
    path = store / "server.dat"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"server\.dat: offset 4: ") as caught:
        read_info(store)
    assert caught.value.damaged is not None


# --- subscriptions


def number(field: int, value: int) -> bytes:
    assert value < 128
    return bytes([field << 3, value])


def text(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2, len(value)]) + value


def new(sub: int, last: int = 0, kind: int = 1) -> bytes:
    return record(number(1, sub) + text(2, b"me") + text(8, b"d") + number(9, last), kind)


def sent(sub: int, sequence: int) -> bytes:
    return record(number(1, sub) + number(2, sequence), 5)


def acked(sub: int, sequence: int) -> bytes:
    return record(number(1, sub) + number(2, sequence), 4)


def gone(sub: int) -> bytes:
    return record(number(1, sub), 3)


def subs_of(store: Path, *records: bytes) -> tuple[list[tuple[int, int, set[int]]], list[Problem]]:
    """(number, last sent, unacked) of each."""
    (store / "c").mkdir(exist_ok=True)
    (store / "c" / "subs.dat").write_bytes(VERSION + b"".join(records))
    problems: list[Problem] = []
    found = read_subs(store, "c", problems)
    return [(sub.number, sub.last_sent, sub.unacked) for sub in found], problems


def test_the_life_of_subscriptions(store: Path) -> None:
    assert subs_of(
        store,
        new(1, 4), sent(1, 5), sent(1, 6), acked(1, 5), new(2), sent(2, 1), gone(2), sent(2, 2),
        new(1, 6, kind=2), sent(1, 7), acked(9, 9), new(3, 2, kind=2), sent(3, 1),
    ) == ([(1, 7, {6, 7}), (3, 2, {1})], [])  # fmt: skip


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_where_records_are_missing_messages_come_again(store: Path) -> None:
    story = [new(1, 4), sent(1, 5), acked(1, 5), sent(1, 6), acked(1, 6), sent(1, 7), acked(1, 7)]
    assert subs_of(store, *story)[0] == [(1, 7, set())]
    # the record of 6 being sent, and of 6 being acknowledged
    lost = [*story[:3], damaged(story[3]), damaged(story[4]), *story[5:]]
    found, problems = subs_of(store, *lost)
    assert found == [(1, 7, {6})]
    offset = len(VERSION) + sum(map(len, story[:3]))
    assert [(p.offset, p.reason) for p in problems] == [
        (offset, f"a record is unreadable; {2 * len(story[3])} bytes skipped")
    ]
    # the last one is torn: it was acknowledged, but nobody knows
    found, problems = subs_of(store, *story[:-1], story[-1][:-1])
    assert (found, len(problems)) == ([(1, 7, {7})], 1)


def sub(number: int, client: str = "me", **more: object) -> Sub:
    values = {"queue": "", "durable": "", "last_sent": 0, "is_closed": False} | more
    found = Sub(number, client, "", f"in{number}", f"ack{number}", 5, 6, "", 0, False)
    for name, value in values.items():
        setattr(found, name, value)
    return found


def test_cursors() -> None:
    extent = Extent("c", 10, 21)
    subs = [
        sub(1, last_sent=3, unacked={2}),  # what it has not acknowledged is gone
        sub(2, "away", last_sent=15),
        sub(3, "away", durable="d", last_sent=15, unacked={9, 12}),
        sub(4, durable="d", last_sent=40, is_closed=True),  # says more than there is
        sub(5, "away", queue="g", last_sent=15),
        sub(6, queue="h", last_sent=15, unacked={14}),
        sub(7, "away", queue="h", last_sent=17, unacked={17}),
        sub(8, queue="h", last_sent=16),
        sub(9, "", queue="d:g", durable="d", last_sent=11, unacked={11}),
        sub(10, "away", queue="d:g", durable="d", last_sent=12),
    ]
    found = cursors_of(extent, subs, {"me"}, 100)
    assert [
        (
            re.sub(r"(stan:p:)\w{22}", r"\1", p.cursor),
            p.next_seq,
            p.unacked,
            [(r.number, r.client_id, r.offline) for r in p.records],
        )
        for p in found
    ] == [
        ("stan:p:", 10, set(), [(100, "me", False)]),
        ("stan:d:away:d", 16, {12}, [(101, "away", True)]),
        ("stan:d:me:d", 21, set(), [(102, "me", True)]),
        ("stan:q:h", 18, {14, 17}, [(103, "me", False), (104, "me", False)]),
        ("stan:q:d:g", 13, {11}, [(105, "away", True)]),
    ]
    record = found[0].records[0]
    assert (record.inbox, record.ack_inbox, record.max_in_flight, record.ack_wait) == (
        "in1", "ack1", 5, 6
    )  # fmt: skip
