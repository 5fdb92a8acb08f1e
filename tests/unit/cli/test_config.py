"""`twinwire config`: what it prints can be read again, names its places and hides secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli.config import config, defaults_file
from broker.config.load import load

GIVEN = """
[nats]
max_payload = "2MiB"
[monitor]
user = "admin"
password = "s3cret"
[nsq]
auth_http_addresses = ["http://user:s3cret@auth.example/"]
[[storage.topic]]
pattern = "a.*"
sync = "none"
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINWIRE_NATS_PING_MAX", "7")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "given.toml"
    path.write_text(GIVEN)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(config, [str(each) for each in arguments])


def test_places(file: Path) -> None:
    lines = run("--effective", "-c", file).output.splitlines()
    found = {line.partition(" = ")[0]: line.rpartition("# ")[2] for line in lines if " = " in line}
    assert found["max_payload"] == f"{file}:3"
    assert found["ping_max"] == "TWINWIRE_NATS_PING_MAX"
    assert found["max_control_line"] == "default"
    assert any(line.startswith("topic = [{") and line.endswith(f"{file}:9") for line in lines)


def test_it_can_be_read_again(file: Path, tmp_path: Path) -> None:
    secret = ("password", "user =", "auth_http")
    lines = [line for line in GIVEN.splitlines() if not line.startswith(secret)]
    file.write_text("\n".join(lines))
    again = tmp_path / "again.toml"
    again.write_text(run("-c", file).output)
    assert load(again) == load(file, {"TWINWIRE_NATS_PING_MAX": "7"})


def test_secrets_are_hidden(file: Path) -> None:
    output = run("-c", file).output
    assert 'password = "***"' in output
    assert "s3cret" not in output


def test_only_what_was_changed(file: Path) -> None:
    lines = [line for line in run("--changed", "-c", file).output.splitlines() if " = " in line]
    assert [line.partition(" = ")[0] for line in lines] == [
        "max_payload", "ping_max", "user", "password", "auth_http_addresses", "topic",
    ]  # fmt: skip


def test_the_file_of_defaults_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINWIRE_NATS_PING_MAX")
    assert run("--changed", "-c", defaults_file()).output == ""
    monkeypatch.setenv("TWINWIRE_NSQ_E2E_PROCESSING_LATENCY_PERCENTILES", "0.99,0.5")
    name = "e2e_processing_latency_percentiles"
    assert f"{name} = [0.99, 0.5]  # TWINWIRE_" in run("--changed").output


def test_the_defaults() -> None:
    assert run("--defaults").output == defaults_file().read_text()
    assert run("--defaults", "--changed").exit_code == 2


def test_an_invalid_file(tmp_path: Path) -> None:
    ended = run("-c", tmp_path / "none.toml")
    assert (ended.exit_code, "cannot be read" in ended.output) == (2, True)
