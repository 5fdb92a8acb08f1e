"""Log lines about topics and channels."""

from __future__ import annotations

import asyncio
import logging

import pytest

from broker.protocols.nsq import limits
from broker.protocols.nsq.service import TopicLines

AT_ONCE = limits.TOPIC_LINES_AT_ONCE


def test_the_lines_of_many_channels_leave_turns_to_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "broker.nsq.topics")
    names = [f"c{i}" for i in range(3 * AT_ONCE)]
    expected = [f"TOPIC(t): deleting channel {name}" for name in names]
    expected.append("TOPIC(t): deleting")

    async def run(turns: int) -> None:
        caplog.clear()
        lines = TopicLines(asyncio.get_running_loop())
        for name in names:
            lines.add("t", name, False)
        lines.add("t", None, False)
        for turn in range(turns):
            assert caplog.messages == expected[: (turn + 1) * AT_ONCE]
            await asyncio.sleep(0)
        lines.add("t", None, True)  # after those that wait
        lines.close()
        assert caplog.messages == [*expected, "TOPIC(t): created"]

    asyncio.run(run(1))
    asyncio.run(run(5))
