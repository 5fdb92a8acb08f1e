"""The Dockerfile and the compose file: linted, and every file that they name is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.config.load import load

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    return found


def test_hadolint_finds_nothing() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("not installed: hadolint")
    found = subprocess.run(
        [program, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_the_build_sees_what_the_dockerfile_uses() -> None:
    """.dockerignore starts with nothing."""
    seen = (ROOT / ".dockerignore").read_text().split()
    assert seen[0] == "*"
    for line in seen[1:]:
        if line.startswith("!"):
            assert (ROOT / line[1:]).exists(), line
    used = re.findall(r"deploy/[\w./]+", DOCKERFILE.read_text())
    assert used
    assert all(any(name.startswith(line[1:]) for line in seen[1:]) for name in used)


def environment_of_image() -> dict[str, str]:
    return dict(re.findall(r"(TWINWIRE_\w+)=(\S+)", DOCKERFILE.read_text()))


def test_settings_of_image_and_compose_are_valid(services: dict[str, Any]) -> None:
    settings = environment_of_image() | services["broker"]["environment"]
    config = load(None, settings, {})
    assert config.stan.enabled
    assert str(config.server.data) == "/data"
    exposed = set(re.findall(r"(?m)^EXPOSE (.*)$", DOCKERFILE.read_text())[0].split())
    addresses = (config.nats.listen, config.monitor.listen, config.nsq.listen, config.nsq.http)
    assert {str(address.port) for address in addresses if address} == exposed
    # the image's console is on loopback inside the container, the compose file's is published
    assert load(None, environment_of_image(), {}).console.listen == ("127.0.0.1", 8171)
    assert config.console.listen is not None
    published = [port for port in services["broker"]["ports"] if port.endswith(":8171")]
    assert published == [f"127.0.0.1:8171:{config.console.listen.port}"]


def test_the_broker_runs_without_rights(services: dict[str, Any]) -> None:
    broker = services["broker"]
    assert broker["read_only"] is True
    assert broker["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in broker["security_opt"]


def test_ports_are_published_on_loopback(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    # the console, which has no login, is not published elsewhere
    ports.remove("127.0.0.1:8171:8171")
    assert all(port.startswith("${BIND_ADDRESS:-127.0.0.1}:") for port in ports)


def test_files_and_volumes_exist(services: dict[str, Any]) -> None:
    volumes = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["volumes"]
    for service in services.values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert (COMPOSE / source).exists() if source.startswith(".") else source in volumes
        assert set(service.get("depends_on", ())) <= set(services)
    context = services["broker"]["build"]["context"]
    assert (COMPOSE / context / "Dockerfile").samefile(DOCKERFILE)


def test_images_have_a_version(services: dict[str, Any]) -> None:
    public = [each["image"] for each in services.values() if "build" not in each]
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in public)


def test_prometheus_and_grafana_find_each_other(services: dict[str, Any]) -> None:
    prometheus = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    (scraped,) = prometheus["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": ["broker:8222"]}]
    mounted = {mount.split(":")[1] for mount in services["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in prometheus["rule_files"]} <= mounted
    provisioning = COMPOSE / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/twinwire.yaml").read_text())[
        "providers"
    ]
    mounted = {mount.split(":")[1] for mount in services["grafana"]["volumes"]}
    assert provider["options"]["path"] in mounted
