"""The thread that sends long output: what it gets, what is taken back, and that nothing waits."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.fakes.sends import WAIT_S, SenderLoop, never_run
from support.native.sends import Output, rest

from broker.base.units import KIB, MIB

LONG = bytes(64 * KIB)
UNDER_WAY_MAX = 8


@pytest.fixture
def loop() -> Iterator[SenderLoop]:
    loop = SenderLoop()
    yield loop
    loop.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        right.settimeout(WAIT_S)
        yield left, right


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    never_run(monkeypatch)


def read(sock: socket.socket, n: int) -> bytes:
    found = b""
    while len(found) < n:
        found += sock.recv(n - len(found))
    return found


def drain(sock: socket.socket) -> None:
    while sock.recv(MIB):
        pass


def test_it_sends_and_reports(loop: SenderLoop, pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    output = Output(loop.sender)
    for first in range(3):
        data = bytes([first]) + os.urandom(len(LONG))
        assert output.offer(left.fileno(), data)
        assert output.under_way
        assert read(right, len(data)) == data
        loop.until(lambda seen=first: len(output.results) > seen)  # type: ignore[misc]
        assert not output.under_way
    assert output.results == [len(LONG) + 1] * 3
    assert loop.sender.offered == 3


def test_no_report_is_lost(loop: SenderLoop) -> None:
    """Reports that come while earlier ones are taken: the loop sleeps until the next one."""
    outputs = [Output(loop.sender) for _ in range(4)]
    with ThreadPoolExecutor(len(outputs)) as threads, contextlib.ExitStack() as sockets:
        for output in outputs:
            left, right = (sockets.enter_context(end) for end in socket.socketpair())
            threads.submit(drain, right)
            sockets.callback(left.shutdown, socket.SHUT_WR)
            output.repeats = 10_000
            assert output.offer(left.fileno(), LONG)
        loop.until(lambda: not any(each.under_way for each in outputs))
    assert [len(each.results) for each in outputs] == [10_001] * len(outputs)


def test_it_reports_what_did_not_fit(
    loop: SenderLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    left, right = pair
    output = Output(loop.sender)
    data = os.urandom(64 * MIB)
    assert output.offer(left.fileno(), data)
    loop.until(lambda: bool(output.results))
    (sent,) = output.results
    assert 0 < sent < len(data)
    assert read(right, sent) == data[:sent]
    full = Output(loop.sender)
    with contextlib.suppress(BlockingIOError):
        while left.send(LONG, socket.MSG_DONTWAIT):
            pass
    assert full.offer(left.fileno(), LONG)
    loop.until(lambda: bool(full.results))
    assert full.results == [-1]


def test_it_reports_a_peer_that_has_gone(
    loop: SenderLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    pair[1].close()
    output = Output(loop.sender)
    assert output.offer(pair[0].fileno(), LONG)
    loop.until(lambda: bool(output.results))
    assert output.results == [-1]


def test_short_output_is_left_to_the_loop(loop: SenderLoop) -> None:
    assert not Output(loop.sender).offer(0, LONG[1:])


def test_a_loop_without_input_sends_itself(loop: SenderLoop) -> None:
    loop.has_input(False)
    assert not Output(loop.sender).offer(0, LONG)
    assert loop.sender.offered == 0


@pytest.mark.usefixtures("late")
def test_it_gets_only_so_many(loop: SenderLoop) -> None:
    outputs = [Output(loop.sender) for _ in range(UNDER_WAY_MAX + 1)]
    assert [each.offer(0, LONG) for each in outputs] == [True] * UNDER_WAY_MAX + [False]
    assert outputs[3].withdraw()
    assert outputs[-1].offer(0, LONG)
    for each in outputs:
        each.withdraw()
    assert not any(each.under_way for each in outputs)


@pytest.mark.usefixtures("late")
def test_nothing_waits_for_a_late_thread(loop: SenderLoop) -> None:
    outputs = [Output(loop.sender) for _ in range(3)]
    assert all(each.offer(0, LONG) for each in outputs)
    rest(loop.sender)
    assert all(each.under_way for each in outputs)  # the loop still has input to read
    loop.has_input(False)
    rest(loop.sender)
    assert [each.results for each in outputs] == [[-1]] * 3
    assert loop.sender.withdrawn == 3
    loop.has_input(True)
    assert outputs[0].offer(0, LONG)
    assert outputs[0].finish() == -1
    assert not outputs[0].withdraw()


def test_a_connection_can_wait_for_the_end(
    loop: SenderLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    left, right = pair
    expected = b""
    for _ in range(200):
        output = Output(loop.sender)
        data = os.urandom(len(LONG))
        assert output.offer(left.fileno(), data)
        sent = output.finish()  # withdrawn, under way or ended, as it happens
        assert sent in {-1, len(data)}
        expected += data if sent > 0 else b""
        assert not output.under_way
        assert output.results == []
        assert read(right, max(sent, 0)) == data[: max(sent, 0)]
    assert loop.sender.offered == 200


def test_after_its_end_the_loop_sends(
    loop: SenderLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    output = Output(loop.sender)
    before = threading.active_count()
    assert output.offer(pair[0].fileno(), LONG)
    assert threading.active_count() == before + 1
    loop.sender.stop()
    assert threading.active_count() == before
    assert output.results in ([-1], [len(LONG)])
    assert not output.offer(pair[0].fileno(), LONG)


def test_it_can_be_had_without_a_thread(loop: SenderLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert not Output(loop.sender).offer(0, LONG)
    monkeypatch.undo()
    assert not Output(loop.sender).offer(0, LONG)
    assert loop.readers == {}
