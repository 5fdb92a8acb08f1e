"""The registry: services are made when they are switched on, and called in their order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.base.service import Service
from broker.config.config import Config
from broker.config.load import load
from broker.protocols.nats.service import NatsService
from broker.server.server import Server
from broker.server.services import SERVICES

ROOT = Path(__file__).resolve().parents[3]
ALL = """
[nsqlookupd]
enabled = true
[stan]
enabled = true
[telemetry]
endpoint = "http://127.0.0.1:4318"
"""
STEPS = ("prepare", "recover", "start", "listen", "drain", "disconnect", "stop", "reload")
# A broker without a listener but that of NATS: of the other protocols only the sections are read.
IMPORTED = """
import sys
from broker.config.load import load
from broker.protocols.nats.service import NatsService
from broker.server.server import Server
Server(load(None, {"TWINWIRE_NSQ_LISTEN": "", "TWINWIRE_NSQ_HTTP": ""}))
print(*sorted(name for name in sys.modules if name.startswith("broker.")))
"""


def named(server: Server) -> list[str]:
    return [service.name for service in server.services]


def test_services_follow_the_order_of_the_registry(tmp_path: Path) -> None:
    (tmp_path / "all.toml").write_text(ALL)
    assert named(Server(Config())) == [
        "metrics", "nats", "jetstream", "nsq", "bulk", "console", "monitor",
    ]  # fmt: skip
    found = named(Server(load(tmp_path / "all.toml")))
    assert found == [
        "nsqlookupd", "metrics", "nats", "jetstream", "stan", "nsq", "bulk", "console", "monitor",
        "telemetry",
    ]  # fmt: skip
    assert len(found) == len(SERVICES)


def test_what_is_off_is_not_imported() -> None:
    found = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert "broker.protocols.nats.server" in found
    for name in (
        "jetstream.api.dispatch",
        "stan.service",
        "nsq.session",
        "nsq.http.app",
        "nsq.lookup.server",
    ):
        assert f"broker.protocols.{name}" not in found


def test_a_service_is_found_by_its_class() -> None:
    class Other(Service):
        name = "other"

    server = Server(Config(), [lambda _host: Other(), lambda _host: None])
    assert named(server) == ["other"]
    assert isinstance(server.service(Other), Other)
    assert Server(Config(), []).service(Other) is None


class Recording(Service):
    """Notes each step; one of them can fail."""

    def __init__(self, name: str, seen: list[str], fails: str = "") -> None:
        self.name = name
        self.seen = seen
        self.fails = fails

    def _step(self, step: str) -> None:
        self.seen.append(f"{step} {self.name}")
        if step == self.fails:
            raise OSError(step)

    def prepare(self) -> None:
        self._step("prepare")

    def __getattribute__(self, name: str) -> Any:
        if name not in STEPS[1:]:
            return super().__getattribute__(name)

        async def run() -> None:
            self._step(name)

        return run

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        return {self.name: ("here", len(self.seen))}


def server_of(folder: Path, seen: list[str], fails: str = "") -> Server:
    config = load(None, {"TWINWIRE_SERVER_DATA": str(folder)})
    made = [Recording("a", seen), Recording("b", seen, fails)]
    return Server(config, [lambda _host, one=one: one for one in made])


async def test_steps_from_start_to_stop(tmp_path: Path) -> None:
    seen: list[str] = []
    server = server_of(tmp_path, seen)
    await server.start()
    assert seen == [f"{step} {name}" for step in STEPS[:4] for name in "ab"]
    assert list(server.ports) == ["a", "b"]
    seen.clear()
    assert await server.reload()
    await server.stop()
    assert seen == ["reload a", "reload b", "drain a", "drain b", "disconnect a", "disconnect b",
                    "stop b", "stop a"]  # fmt: skip


async def test_a_reload_that_fails_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    made = [Recording("a", seen, "reload"), Recording("b", seen)]
    config = load(None, {"TWINWIRE_SERVER_DATA": str(tmp_path)})
    server = Server(config, [lambda _host, one=one: one for one in made])
    await server.start()
    assert not await server.reload()
    assert seen[-2:] == ["reload a", "reload b"]
    assert "a was not reloaded" in caplog.text
    await server.stop()


async def test_a_reload_without_a_nats_listener(tmp_path: Path) -> None:
    """Others are reloaded after NATS: it must not fail where it does not listen, or not yet."""
    (tmp_path / "nats.conf").write_text("max_payload: 1MB")
    closed = {f"TWINWIRE_{it}": "" for it in ("NATS_LISTEN", "MONITOR_LISTEN")}
    environment = closed | {
        "TWINWIRE_NSQ_LISTEN": "127.0.0.1:0",
        "TWINWIRE_NSQ_HTTP": "127.0.0.1:0",
        "TWINWIRE_SERVER_DATA": str(tmp_path / "data"),
        "TWINWIRE_NATS_CONFIG_FILE": str(tmp_path / "nats.conf"),
    }
    seen: list[str] = []
    server = Server(load(None, environment), [NatsService, lambda _host: Recording("last", seen)])
    await server.start()
    (tmp_path / "nats.conf").write_text("max_payload: 2MB")
    await server.reload()
    assert seen[-1] == "reload last"
    nats = server.service(NatsService)
    assert nats is not None
    assert nats.server is not None
    assert nats.server.settings.max_payload == 2 << 20
    await server.stop()


@pytest.mark.parametrize("step", STEPS[:4])
async def test_a_start_that_fails_stops_every_service(tmp_path: Path, step: str) -> None:
    seen: list[str] = []
    server = server_of(tmp_path, seen, step)
    with pytest.raises(OSError, match=step):
        await server.start()
    assert seen[-3:] == [f"{step} b", "stop b", "stop a"]
    again = server_of(tmp_path, [])
    await again.start()  # the folder is free
    await again.stop()


async def test_a_server_in_memory_leaves_no_files(tmp_path: Path) -> None:
    config = load(None, {"TWINWIRE_SERVER_DATA": str(tmp_path / "data")})
    server = Server(config, [], in_memory=True)
    await server.start()
    server.engine.open_log("t")
    await server.stop()
    assert not (tmp_path / "data").exists()
