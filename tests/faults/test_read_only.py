"""A data folder that may not be written: the broker says so, and serves what it can."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from support import Broker
from support.clients.http import nsq_topic, request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.only_ours

# For root no folder is read-only, unless it gives up the right to pass over permissions.
OBEDIENT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
START_S = 30


class Obedient(Broker):
    """A broker for which folders' permissions count."""

    def command(self, ports_file: Path) -> list[str]:
        own = super().command(ports_file)
        return [*OBEDIENT, *own] if os.geteuid() == 0 else own


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    broker = Obedient(tmp_path / "server")
    broker.data.mkdir()
    with read_only(broker.data):
        command = broker.command(tmp_path / "ports.json")
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=START_S, check=False
        )
    assert ended.returncode == 1
    assert "cannot start" in ended.stderr
    assert "Permission denied" in ended.stderr
    assert str(broker.data) in ended.stderr
    assert list(broker.data.iterdir()) == []


def test_only_new_topics_fail_where_no_folder_can_be_made(tmp_path: Path) -> None:
    broker = Obedient(tmp_path / "server")
    try:
        broker.start()
        assert request(broker.nsq_http, "POST", "/pub", b"x", topic="old").body == b"OK"
        with read_only(broker.data / "logs"):
            refused = request(broker.nsq_http, "POST", "/pub", b"x", topic="new")
            assert refused.status >= 500
            assert request(broker.nsq_http, "POST", "/pub", b"y", topic="old").body == b"OK"
            assert nsq_topic(broker.nsq_http, "new") is None
        assert request(broker.nsq_http, "POST", "/pub", b"x", topic="new").body == b"OK"
        assert nsq_topic(broker.nsq_http, "old")["depth"] == 2
    finally:
        broker.close()


def test_a_topic_that_cannot_be_deleted_stays_whole(tmp_path: Path) -> None:
    broker = Obedient(tmp_path / "server")
    try:
        broker.start()
        assert request(broker.nsq_http, "POST", "/pub", b"x", topic="t").body == b"OK"
        with read_only(broker.data / "logs"):
            assert request(broker.nsq_http, "POST", "/topic/delete", topic="t").status == 503
            assert request(broker.nsq_http, "POST", "/pub", b"y", topic="t").body == b"OK"
        broker.kill()
        broker.start()
        assert nsq_topic(broker.nsq_http, "t")["depth"] == 2
        assert request(broker.nsq_http, "POST", "/topic/delete", topic="t").status == 200
        assert nsq_topic(broker.nsq_http, "t") is None
    finally:
        broker.close()
