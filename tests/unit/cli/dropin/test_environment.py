"""What drop-in commands read from the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.base.units import US
from broker.cli.dropin.environment import from_environment
from broker.cli.dropin.nats_server.jetstream import config_of
from broker.cli.dropin.nsqd.config import to_config
from broker.config.config import Config
from broker.config.load import ConfigError
from broker.net import limits
from broker.protocols.nats.settings import JetStream, Settings


def test_only_what_the_originals_have_no_setting_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINWIRE_NSQ_LISTEN", "127.0.0.1:1")
    assert from_environment() == Config()
    monkeypatch.setenv("TWINWIRE_HTTP_ALLOWED_HOSTS", "broker.example")
    monkeypatch.setenv("TWINWIRE_SERVER_BUSY_POLL", "20us")
    found = from_environment()
    assert found.http.allowed_hosts == ("broker.example",)
    assert found.server.busy_poll_ns == 20 * US


def test_busy_poll_of_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, found in (("", limits.BUSY_POLL), ("off", 0)):
        if text:
            monkeypatch.setenv("TWINWIRE_SERVER_BUSY_POLL", text)
        assert to_config({}, {}).server.busy_poll_ns == found
        assert config_of(Settings(jetstream=JetStream())).server.busy_poll_ns == found


def test_an_invalid_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINWIRE_SERVER_BUSY_POLL", "fast")
    with pytest.raises(ConfigError, match="busy_poll"):
        from_environment()


@pytest.mark.parametrize(
    "command",
    ["nats-server", "nats-server -js -sd data", "nats-streaming-server", "nsqd", "nsqlookupd"],
)
def test_an_invalid_value_is_one_line(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "broker", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "TWINWIRE_SERVER_BUSY_POLL": "fast"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("TWINWIRE_SERVER_BUSY_POLL") == 1
    assert "Traceback" not in done.stderr
