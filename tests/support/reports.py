"""Data of reports in tests: rows of a rollup, and hostile names."""

from __future__ import annotations

from typing import Any

from broker.spark.rollup.page import RollupData

HOUR = 3600 * 10**6
START = 1_763_740_800 * 10**6
HOSTILE = [
    "<script>alert(1)</script>",
    "\"' onload='x' <img src=x onerror=y>",
    "</style></svg></title>]]><!--",
    "\x00\x1b[31m\r\n\u202egnp.exe\ud800\uffff\u2028",
    "&lt;b&gt; &amp; &#x41;",
    "{{7*7}} ${x} %s",
    "n" * 5000,
]


def topic_row(topic: str, hour: int, records: int, first: int, **more: Any) -> dict[str, Any]:
    return {
        "topic": topic, "partition": 0, "incarnation": "ab", "window_start": START + hour * HOUR,
        "window_s": 3600, "state": "whole", "records": records, "bytes": records * 100,
        "first": first, "last": first + records - 1, "holes": 0, "size_min": 100,
        "size_max": 100, "sizes": {106: records}, **more,
    }  # fmt: skip


def channel_row(topic: str, channel: str, hour: int, **more: Any) -> dict[str, Any]:
    return {
        "topic": topic, "channel": channel, "partition": 0, "window_start": START + hour * HOUR,
        "window_s": 3600, "state": "whole", "acked": 90, "dead": 10, "requeued": 5,
        "timed_out": 4, "closed": 3, "lost": 0, "latency_max_ns": 2_000_000,
        "latencies": {320: 90}, "attempts": {1: 80, 16: 10}, **more,
    }  # fmt: skip


def shown(topics: list[Any], channels: list[Any], **more: Any) -> RollupData:
    return RollupData(HOUR, START, START + 48 * HOUR, topics, channels, **more)
