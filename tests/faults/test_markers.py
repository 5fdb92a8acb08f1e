"""Markers in the place of messages that were too old, when the disk fails or the process ends."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.engine import SECOND, SYNC, WRITE, Rig
from support.streams import StreamCase, get

from broker.protocols.jetstream.publish.stream import Stream
from broker.runtime import vfs

MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 5s\r\nNats-Rollup: sub\r\n\r\n"


def stream_in(case: StreamCase, **limits: Any) -> Stream:
    return case.make(
        limits,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        subject_delete_marker_ttl=5 * SECOND,
    )


def has_marker(stream: Stream) -> bool:
    """Whether the marker is all that the stream has."""
    found = get(stream, last_by_subj="s.a")
    return stream.store.messages == 1 and found is not None and found[2] == MARKER


@pytest.mark.parametrize("call", [WRITE, SYNC])
def test_a_marker_that_the_disk_refuses_comes_later(tmp_path: Path, call: int) -> None:
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = StreamCase(rig)
        stream = stream_in(case)
        case.ask("s.a", b"x", Nats_TTL="5s")
        vfs.fail(call, 28, times=1000)
        for _ in range(8):
            rig.advance(1)
        assert get(stream, last_by_subj="s.a")[3] == b"x"  # not without its marker
        vfs.heal()
        for _ in range(3):
            rig.advance(1)
        assert has_marker(stream)
        for _ in range(7):
            rig.advance(1)
        assert stream.store.messages == 0


def test_a_marker_comes_after_a_kill_before_it_was_stored(tmp_path: Path) -> None:
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = StreamCase(rig)
        stream_in(case)
        case.ask("s.a", b"x", Nats_TTL="5s")
        vfs.hold(WRITE)
        rig.turn.set_clock(rig.turn.now_ns + 6 * SECOND, rig.turn.wall_ns + 6 * SECOND)
        rig.turn.run_timers()
        rig.until(lambda: vfs.held(WRITE) > 0)
        shutil.copytree(tmp_path / "logs", tmp_path / "after")
        vfs.release(WRITE)
    with Rig(tmp_path / "after", sync="always") as rig:
        case = StreamCase(rig)
        stream = stream_in(case)
        rig.advance(6)
        assert has_marker(stream)


def test_a_full_stream_has_room_for_a_marker() -> None:
    with Rig(None) as rig:
        case = StreamCase(rig)
        stream = stream_in(case, max_msgs=1, discard_new=True)
        case.ask("s.a", b"x", Nats_TTL="5s")
        rig.advance(6)
        assert has_marker(stream)


def test_very_many_markers_that_the_disk_refused_come_in_parts(tmp_path: Path) -> None:
    """All at once they would keep the connections waiting."""
    count, at_once = 5000, 2000
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = StreamCase(rig)
        stream = stream_in(case)
        for number in range(count):
            case.send(f"s.{number}", b"x", Nats_TTL="5s")
        rig.settle()
        vfs.fail(WRITE, 28, times=1000)
        for _ in range(8):
            rig.advance(1)
        vfs.heal()
        steps = [stream.store.last_seq]
        assert steps == [count]
        run_once = rig.loop.run_once

        def watched() -> None:
            steps.append(stream.store.last_seq)
            run_once()
            steps.append(stream.store.last_seq)

        rig.loop.run_once = watched  # type: ignore[method-assign]
        for _ in range(3):
            rig.advance(1)
        assert steps[-1] == 2 * count
        assert max(after - before for before, after in pairwise(steps)) <= at_once
