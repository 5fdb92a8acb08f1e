"""`twinwire support-bundle`: of a broker that runs and of one that does not, and no secrets."""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.clients.http import request
from support.servers.processes import Broker

from broker.cli import support
from broker.cli.support import support_bundle

SECRETS = (
    "pw-of-monitor", "pw-of-auth-url", "tok-of-a-reader", "pw-of-nats-user", "tok-of-nats",
    "SUACSEEDSEEDSEED", "pw-in-a-log", "tok-in-a-log", "pw-of-environment", "tok-of-telemetry",
    "tok-of-console", "hash-of-console",
)  # fmt: skip
BODY = "the-body-of-a-message"


def run(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(support_bundle, [str(each) for each in arguments], env=env)


def read(path: Path) -> dict[str, str]:
    """Text by name, without the folder."""
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            assert entry.mode == 0o600
            found[entry.name.partition("/")[2]] = file.read().decode()
    return found


@pytest.fixture
def configured(tmp_path: Path) -> dict[str, dict[str, object]]:
    """A configuration with a secret wherever one can be."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# readers\nlake {SECRETS[2]} read,hold orders.*\n")
    console = tmp_path / "console"
    console.mkdir()
    (console / "tokens").write_text(f"deploy admin {SECRETS[10]}\n")
    (console / "users").write_text(f"ann admin {SECRETS[11]}\n")
    nats = tmp_path / "nats.conf"
    nats.write_text(
        f'authorization {{ users: [ {{ user: u, password: "{SECRETS[3]}" }} ] }}\n'
        f"leafnodes {{ remotes [ {{ url: 'nats://leaf:{SECRETS[4]}@127.0.0.1:1' }} ] }}\n"
        f"# seed: {SECRETS[5]}\n"
    )
    return {
        "monitor": {"user": "admin", "password": SECRETS[0]},
        "nsq": {"auth_http_addresses": [f"http://user:{SECRETS[1]}@127.0.0.1:1/"]},
        "bulk": {"token_file": str(tokens)},
        "nats": {"config_file": str(nats)},
        "telemetry": {"headers": [f"x-key=Bearer {SECRETS[9]}"]},
        "console": {"token_file": str(console / "tokens"), "users_file": str(console / "users")},
        "bridge": {"nats_to_nsq": False, "nsq_to_nats": False},
    }


def check_no_secret(found: dict[str, str]) -> None:
    for secret in (*SECRETS, BODY):
        encoded = base64.b64encode(f"admin:{secret}".encode()).decode()
        for name, text in found.items():
            assert secret not in text, name
            assert secret not in name
            assert encoded not in text, name


def toml(sections: dict[str, dict[str, object]]) -> str:
    lines = []
    for name, keys in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def test_no_secret_of_a_configuration_is_in_it(
    tmp_path: Path, configured: dict[str, dict[str, object]]
) -> None:
    log = tmp_path / "broker.log"
    log.write_text(
        f"connected to nats://a:{SECRETS[6]}@h with token={SECRETS[7]}\n"
        f"sent x-key: Bearer {SECRETS[9]}\n"
        f"refused {SECRETS[0]} {SECRETS[2]} {SECRETS[3]}\n"
        f"console {SECRETS[10]} {SECRETS[11]}\n"
    )
    file = tmp_path / "t.toml"
    file.write_text(toml(configured))
    env = {"TWINWIRE_MONITOR_PASSWORD": SECRETS[8], "TWINWIRE_SERVER_DATA": str(tmp_path)}
    made = tmp_path / "b.tar.gz"
    result = run("-c", file, "-o", made, "--log", log, env=env)
    assert result.exit_code == 0, result.output
    assert made.stat().st_mode & 0o777 == 0o600
    found = read(made)
    check_no_secret(found)
    assert "TWINWIRE_MONITOR_PASSWORD" in found["environment.txt"]
    assert 'user = "admin"' in found["config.txt"]
    assert "refused *** *** ***" in found["logs/0-broker.log"]
    assert "console *** ***" in found["logs/0-broker.log"]
    assert "parts are not there" in result.output
    assert "nats.conf" in found["data.txt"]  # a name and a size, no content
    check_no_secret({"name": result.output})


def test_of_a_broker_that_runs(tmp_path: Path, configured: dict[str, dict[str, object]]) -> None:
    del configured["nats"], configured["bridge"], configured["nsq"], configured["console"]
    broker = Broker(tmp_path / "server", configured)
    try:
        broker.start()
        request(broker.nsq_http, "POST", "/pub", BODY.encode(), topic="orders")
        made = tmp_path / "b.tar.gz"
        file = tmp_path / "t.toml"
        file.write_text(toml({**configured, "server": {"data": str(broker.data)}}))
        ports = tmp_path / "ports.json"
        addresses = {"monitor": str(broker.monitor), "nsq_http": str(broker.nsq_http)}
        addresses["console"] = str(broker.addresses["console"])
        ports.write_text(json.dumps(addresses))
        result = run("-c", file, "-o", made, "--ports-file", ports)
        pid = broker.pids[0]
    finally:
        broker.close()
    assert result.exit_code == 0, result.output
    found = read(made)
    check_no_secret(found)
    assert json.loads(found["pages/monitor-healthz.txt"])["status"] == "ok"
    assert json.loads(found["pages/monitor-varz.txt"])["server_id"]
    assert json.loads(found["pages/monitor-jsz.txt"])["streams"] == 0
    assert json.loads(found["pages/console-overview.txt"])["health"]["ok"]
    assert "TOPIC(orders): created" in found["pages/console-logs.txt"]
    assert 'twinwire_topic_messages_total{topic="orders"}' in found["pages/monitor-metrics.txt"]
    stats = json.loads(found["pages/nsq_http-stats.txt"])
    assert [topic["topic_name"] for topic in stats["topics"]] == ["orders"]
    assert f"\nPid:\t{pid}\n" in found["process/status.txt"]
    assert "Max open files" in found["process/limits.txt"]
    assert any(line.endswith("twinwire.lock") for line in found["data.txt"].splitlines())
    assert "twinwire " in found["versions.txt"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    made = tmp_path / "b.tar.gz"
    made.write_text("mine")
    result = run("-o", made)
    assert result.exit_code == 1
    assert "File exists" in result.output
    assert made.read_text() == "mine"


def test_an_invalid_configuration_is_in_it_too(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(f'[monitor]\nuser = 5\npassword = "{SECRETS[0]}"\n')
    log = tmp_path / "log"
    log.write_text(f"it is {SECRETS[0]}\n")
    result = run("-c", file, "-o", tmp_path / "b.tar.gz", "--log", log)
    assert result.exit_code == 0
    found = read(tmp_path / "b.tar.gz")
    assert "monitor.user: expected a string" in found["config.txt"]
    assert found["logs/0-log"] == "it is ***\n"
    assert "Connection refused" in found["missing.txt"] or found["pages/monitor-healthz.txt"]


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(support, "collect", full)
    result = run("-o", tmp_path / "b.tar.gz")
    assert result.exit_code == 1
    assert "No space left" in result.output
    assert list(tmp_path.iterdir()) == []


def test_only_the_end_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "LOG_BYTES_MAX", 20)
    log = tmp_path / "long"
    log.write_text("".join(f"line {n}\n" for n in range(10)))
    assert support.tail(log) == "line 8\nline 9\n"
