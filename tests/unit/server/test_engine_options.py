"""What the configuration gives to the engine, and what it says about its logs."""

from __future__ import annotations

import errno
from pathlib import Path

from support.engine import WRITE, Rig

from broker.config.config import Config
from broker.config.load import load
from broker.runtime import vfs
from broker.server.engine import broken_log, engine_options


def test_sections_say_what_they_need(tmp_path: Path) -> None:
    usual = engine_options(Config())
    assert usual.ack_latency_ns == 0
    assert usual.delay_max_ns == 3600 * 10**9
    assert usual.private_subjects == (b"_INBOX.", b"_STAN.", b"_STAN.discover.", b"$JS.")
    file = tmp_path / "t.toml"
    file.write_text(
        "[stan]\ndiscover_prefix = 'find'\n"
        "[nsq]\ne2e_processing_latency_percentiles = [0.9]\n"
        "e2e_processing_latency_window_time = '1m'\n"
        "max_defer = '7d'\n"
        "[bridge]\nnsq_to_nats = false\n"
    )
    given = engine_options(load(file))
    assert given.ack_latency_ns == 60 * 10**9
    assert given.delay_max_ns == 7 * 24 * 3600 * 10**9
    assert given.private_subjects == (b"_INBOX.", b"_STAN.", b"find.", b"$JS.")
    assert (given.to_live, given.from_live) == (False, True)


def test_a_full_log_in_memory_is_no_problem_of_the_data_folder(tmp_path: Path) -> None:
    """Its consumers are behind, and publishers get an error; a load balancer need not know."""
    with Rig(tmp_path, memory_bytes_max=4096, memory_segment_bytes=1024) as rig:
        topic = rig.log("t#ephemeral", ephemeral=True)
        topic.open_cursor("c")
        while rig.publish(topic, [b"x" * 100]) == [1]:
            pass
        assert topic.last_error == errno.ENOBUFS
        assert broken_log(rig.engine) is None
        log = rig.log()
        vfs.fail(WRITE, errno.ENOSPC)
        assert rig.publish(log, [b"x"]) != [1]
        assert broken_log(rig.engine) == "log t: No space left on device"
        rig.advance(3)
        assert broken_log(rig.engine) is None
        rig.close()
