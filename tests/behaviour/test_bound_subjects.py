"""A log that is bound to subjects: what is published to them is stored once, with its subject."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.engine import Rig, segment_files
from support.native.routing import Subscriber

from broker.engine.cursor.local import LocalConsumer
from broker.engine.limits import LOG_SUBJECT_BYTES_MAX, LOG_SUBJECTS_MAX
from broker.engine.log.publish import append
from broker.routing.local import publish
from broker.routing.router import Router

PRIVATE = {"private_subjects": (b"_INBOX.", b"_STAN.discover.")}


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    with Rig(memory_path / "data", **PRIVATE) as made:
        yield made


def bound(rig: Rig, *subjects: str) -> Any:
    return rig.engine.open_log("t", subjects=subjects)


def send(rig: Rig, *subjects: str, router: Router | None = None) -> list[int]:
    """Publish one message to each; how many took it. Its body is its subject."""
    taken = [publish(router or rig.router, each.encode(), each.encode()) for each in subjects]
    rig.settle()
    return taken


def stored(rig: Rig, log: Any) -> list[str]:
    """The subjects of all records, which their bodies repeat."""
    cursor = log.open_cursor("new", ephemeral=True, start=log.first_seq)
    consumer = LocalConsumer(cursor, 1 << 30)
    consumer.heads = []
    rig.settle()
    rig.until(lambda: not cursor.depth)
    found = [head[0].decode() for head in consumer.heads]
    assert [record[3].decode() for record in consumer.records] == found
    consumer.leave()
    return found


def test_two_subjects(rig: Rig) -> None:
    log = bound(rig, "a", "b.c")
    assert send(rig, "a", "b.c", "b", "t", "b.c.d", "a") == [1, 1, 0, 0, 0, 1]
    assert stored(rig, log) == ["a", "b.c", "a"]
    assert not log.hears_live


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("a.*", ["a.b", "a.c"], ["a", "a.b.c", "b.a"]),
        ("*.b", ["a.b", "t.b"], ["b", "a.b.c"]),
        ("a.>", ["a.b", "a.b.c"], ["a", "b.a"]),
        (">", ["a", "a.b", "t"], ["_INBOX.x", "_STAN.discover.x"]),
        ("_STAN.*.x", ["_STAN.other.x"], ["_STAN.discover.x"]),
    ],
)
def test_wildcards(rig: Rig, pattern: str, inside: list[str], outside: list[str]) -> None:
    log = bound(rig, pattern)
    assert send(rig, *outside) == [0] * len(outside)
    assert send(rig, *inside) == [1] * len(inside)
    assert stored(rig, log) == inside


@pytest.mark.parametrize(
    "subjects",
    [
        ("a.*", "*.b"),
        ("a.b", "a.>"),
        (">", "a.b"),
        ("a.b", "a.b"),
        ("a.*", "*.b", "*.*", "a.>", ">", "x"),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_message_that_matches_several_is_stored_once(
    rig: Rig, subjects: tuple[str, ...], reverse: bool
) -> None:
    log = bound(rig, *(reversed(subjects) if reverse else subjects))
    assert send(rig, "a.b", "a.b") == [1, 1]
    assert stored(rig, log) == ["a.b", "a.b"]
    assert log.next_seq == 3


def test_what_only_one_of_two_overlapping_ones_matches(rig: Rig) -> None:
    log = bound(rig, "a.*", "*.b")
    assert send(rig, "a.x", "x.b", "a.b", "x.y") == [1, 1, 1, 0]
    assert stored(rig, log) == ["a.x", "x.b", "a.b"]


def test_two_logs_that_overlap_both_store(rig: Rig) -> None:
    log, other = bound(rig, "a.*"), rig.engine.open_log("u", subjects=["*.b"])
    assert send(rig, "a.b") == [2]
    assert stored(rig, log) == stored(rig, other) == ["a.b"]


def test_only_another_subject_than_the_name_takes_room(rig: Rig) -> None:
    log = bound(rig, "t", "x")
    assert log.hears_live
    send(rig, "t", "x", "t")
    rig.close()
    (segment,) = segment_files(rig.root)  # type: ignore[arg-type]
    size = segment.stat().st_size
    assert stored_lengths(segment, size) == [0, 1, 0]


def stored_lengths(segment: Path, size: int) -> list[int]:
    """Length of the subject in each record of a file: see the log format."""
    data, at, found = segment.read_bytes(), 64, []
    while at < size and (length := int.from_bytes(data[at : at + 4], "little")):
        found.append(int.from_bytes(data[at + 32 : at + 34], "little"))
        at += (length + 7) & ~7
    return found


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart(tmp_path: Path, clean: bool) -> None:
    with Rig(tmp_path / "0") as rig:
        log = bound(rig, "a.*", "*.b")
        send(rig, "a.b", "a.x")
        if clean:
            rig.close()
        else:
            rig.crash(tmp_path / "1")
    with Rig(tmp_path / ("0" if clean else "1")) as rig:
        log = rig.engine.log("t")
        assert log is not None
        assert log.policy.subjects == ("a.*", "*.b")
        assert send(rig, "t", "a.b", "x.b") == [0, 1, 1]
        assert stored(rig, log) == ["a.b", "a.x", "a.b", "x.b"]


def test_a_restart_from_the_catalog(tmp_path: Path) -> None:
    count = 120  # fewer logs have no catalog
    with Rig(tmp_path) as rig:
        for number in range(count):
            rig.publish(rig.engine.open_log(f"l{number}", subjects=[f"a.{number}", "b"]), [b"x"])
        rig.close()
    assert (tmp_path / ".catalog").exists()
    with Rig(tmp_path) as rig:
        assert send(rig, "b", "a.7", "l7") == [count, 1, 0]


def test_other_subjects(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = bound(rig, "a", "b")
        log.set_subjects(["b", "c"])
        assert send(rig, "a", "b", "c") == [0, 1, 1]
        log.set_subjects(())
        assert send(rig, "a", "b", "c", "t") == [0] * 4
        rig.crash(tmp_path.with_name("crashed"))
    with Rig(tmp_path.with_name("crashed")) as rig:
        log = rig.engine.open_log("t")
        assert send(rig, "a", "b", "c", "t") == [0] * 4
        log.set_subjects(None)
        assert send(rig, "c", "t") == [0, 1]
        assert log.hears_live
        assert stored(rig, log) == ["b", "c", "t"]
        rig.engine.open_log("t", subjects=["d"])
        assert send(rig, "d", "t") == [1, 0]
        rig.engine.delete_log("t")
        assert send(rig, "d", "t") == [0, 0]
        assert rig.router.size == 0


def test_own_name_needs_no_key(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = bound(rig, "a")
        assert orjson.loads((tmp_path / "t" / "meta.json").read_bytes())["subjects"] == ["a"]
        log.set_subjects(None)
        assert "subjects" not in orjson.loads((tmp_path / "t" / "meta.json").read_bytes())


def test_subjects_are_on_the_disk_before_the_answer(tmp_path: Path) -> None:
    """As other metadata; if that fails nothing has changed."""
    with Rig(tmp_path, sync="always") as rig:
        log = bound(rig, "a")
        before = (tmp_path / "t" / "meta.json").read_bytes()

        def full_disk(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("broker.engine.log.log.save_meta", full_disk)
            with pytest.raises(OSError, match="No space"):
                log.set_subjects(["b"])
        assert (tmp_path / "t" / "meta.json").read_bytes() == before
        assert log.policy.subjects == ("a",)
        assert send(rig, "a", "b") == [1, 0]
        assert rig.router.size == 1


def test_metadata_that_are_lost_are_to_be_claimed(tmp_path: Path) -> None:
    """No header has the subjects, so nothing of the log is dropped before an operator claims it."""
    with Rig(tmp_path) as rig:
        log = rig.log()
        rig.publish(log, [b"x"])
        log.set_subjects(["a"])
        rig.close()
    (tmp_path / "t" / "meta.json").unlink()
    with Rig(tmp_path) as rig:
        assert rig.engine.open_log("t").unclaimed


@pytest.mark.parametrize(
    "wrong",
    ["", "a..b", ".a", "a.", "a.>.b", "a b", "a\tb", "a\0", "x" * LOG_SUBJECT_BYTES_MAX + "x"],
)
def test_not_subjects(rig: Rig, wrong: str) -> None:
    log = bound(rig, "a")
    with pytest.raises(ValueError, match=r"not a|too long"):
        log.set_subjects(["b", wrong])
    assert send(rig, "a", "b") == [1, 0]
    with pytest.raises(ValueError, match=r"not a|too long"):
        rig.engine.open_log("u", subjects=[wrong])
    assert rig.engine.log("u") is None


def test_the_most_subjects(rig: Rig) -> None:
    stem = "é" * (LOG_SUBJECT_BYTES_MAX // 2 - 2)
    most = [f"{stem}{number:04}" for number in range(LOG_SUBJECTS_MAX)]
    log = bound(rig, *most)
    with pytest.raises(ValueError, match="more than"):
        log.set_subjects([*most, "a"])
    assert send(rig, most[0], most[-1]) == [1, 1]
    rig.close()
    with Rig(rig.root) as again:
        assert again.engine.open_log("t").policy.subjects == tuple(most)


def test_private_subjects_are_not_bound(rig: Rig) -> None:
    log = bound(rig, "_INBOX.x", "_INBOX.>", "a")
    assert send(rig, "_INBOX.x", "a") == [0, 1]
    assert stored(rig, log) == ["a"]


def test_a_log_that_is_not_connected_is_not_bound(rig: Rig) -> None:
    log = bound(rig, "a")
    log.connect(False, False)
    assert send(rig, "a") == [0]
    log.set_subjects(["a", "b"])
    assert send(rig, "a", "b") == [0, 0]
    assert rig.router.size == 0
    log.connect(False, True)
    assert send(rig, "a", "b") == [1, 1]


def test_the_router_of_an_account(rig: Rig) -> None:
    account = Router()
    log = bound(rig, "a.*")
    heard = Subscriber(account)
    heard.subscribe(b"1", b">")
    log.connect(True, True, account)
    assert send(rig, "a.b") == [0]
    assert send(rig, "a.c", router=account) == [2]
    append(log, b"t")
    rig.settle()
    assert [message[1] for message in heard.received] == [b"a.c", b"t"]
    log.connect(True, True)
    assert send(rig, "a.d", router=account) == [1]
    assert send(rig, "a.e") == [1]
    assert stored(rig, log) == ["a.c", "t", "a.e"]
    heard.close()


def test_live_subscribers_get_what_is_appended(rig: Rig) -> None:
    """A log does not store again what it delivers, whatever its subjects match."""
    log = bound(rig, ">", "t")
    assert append(log, b"1")
    rig.settle()
    heard = Subscriber(rig.router)
    heard.subscribe(b"1", b">")
    assert append(log, b"2")
    assert append(log, b"3", subject=b"x.y")
    rig.settle()
    assert [(heard_as, body) for _, heard_as, _, body in heard.received] == [
        (b"t", b"2"),
        (b"x.y", b"3"),
    ]
    assert log.next_seq == 4
    heard.close()
