"""What the configuration gives to the engine."""

from __future__ import annotations

from pathlib import Path

from broker.config.config import Config
from broker.config.load import load
from broker.server.engine import engine_options


def test_sections_say_what_they_need(tmp_path: Path) -> None:
    usual = engine_options(Config())
    assert usual.ack_latency_ns == 0
    assert usual.private_subjects == (b"_INBOX.", b"_STAN.", b"_STAN.discover.", b"$JS.")
    file = tmp_path / "t.toml"
    file.write_text(
        "[stan]\ndiscover_prefix = 'find'\n"
        "[nsq]\ne2e_processing_latency_percentiles = [0.9]\n"
        "e2e_processing_latency_window_time = '1m'\n"
        "[bridge]\nnsq_to_nats = false\n"
    )
    given = engine_options(load(file))
    assert given.ack_latency_ns == 60 * 10**9
    assert given.private_subjects == (b"_INBOX.", b"_STAN.", b"find.", b"$JS.")
    assert (given.to_live, given.from_live) == (False, True)
