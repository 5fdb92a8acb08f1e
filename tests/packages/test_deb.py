"""The Debian package, in a clean Debian of its own: installed, used, upgraded, removed, purged.

The root is made by debootstrap, and each command runs in it with a mount and process namespace of
its own: when the command ends, nothing is mounted and no process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"  # of the Python that the package is built with: /usr/bin/python3
DEADLINE_S = 120.0
CONFIG = "etc/twinwire/twinwire.toml"
DATA = "var/lib/twinwire"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        os.geteuid() != 0
        or not all(map(shutil.which, ("debootstrap", "dpkg-deb", "unshare", "chroot"))),
        reason="needs root, debootstrap, dpkg-deb",
    ),
]


@pytest.fixture(scope="module")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release = Path("/etc/os-release").read_text()
    if SUITE not in release:
        pytest.skip(f"the package is built on Debian {SUITE}")
    out = tmp_path_factory.mktemp("deb")
    command = [sys.executable, str(ROOT / "tools" / "deb.py"), "--out", str(out)]
    if ready := os.environ.get("TWINWIRE_TEST_WHEEL"):
        command += ["--wheel", ready]
    else:
        pytest.importorskip("auditwheel", reason="`make deb` installs it")
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (found,) = out.glob("*.deb")
    return found


def children(pid: int) -> list[int]:
    """Of a process; none if it has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


class Debian:
    """A Debian below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = "http://deb.debian.org/debian"
        command = ["debootstrap", "--variant=minbase", SUITE, str(folder), source]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no Debian {SUITE} can be made here: {made.stdout[-500:]}")

    def command(self, script: str) -> list[str]:
        """A shell script in this Debian. /proc is mounted for it alone."""
        inside = f"mount -t proc proc {self.folder}/proc && exec chroot {self.folder} sh -ec "
        inside += '"$0"'
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        return [*unshare, "sh", "-ec", inside, script]

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}
        path = "/usr/sbin:/usr/bin:/sbin:/bin"
        return kept | {"PATH": path, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}

    def run(self, script: str) -> str:
        command = self.command(script)
        found = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, f"{script}\n{found.stdout}\n{found.stderr}"
        return found.stdout

    def install(self, deb: Path) -> str:
        shutil.copy2(deb, self.folder / "tmp")
        return self.run(f"apt-get install -q -y --no-install-recommends /tmp/{deb.name}")

    def facts(self, path: str) -> str:
        """Mode and owner."""
        return self.run(f"stat -c '%a %U:%G' /{path}").strip()

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.folder / path)

    @contextlib.contextmanager
    def broker(self) -> Iterator[dict[str, str]]:
        """The broker as the unit starts it, with free ports; yields its addresses."""
        unit = (self.folder / "usr/lib/systemd/system/twinwire.service").read_text()
        (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        free = {"NATS_LISTEN": 0, "MONITOR_LISTEN": 0, "NSQ_LISTEN": 0, "NSQ_HTTP": 0}
        free |= {"BULK_LISTEN": 0, "CONSOLE_LISTEN": 0}
        setting = " ".join(f"TWINWIRE_{key}=127.0.0.1:0" for key in free)
        ports = self.folder / DATA / "ports"
        ports.unlink(missing_ok=True)
        script = f"cd /{DATA}; exec env {setting} setpriv --reuid twinwire --regid twinwire "
        script += f"--clear-groups --no-new-privs {start} --ports-file /{DATA}/ports"
        log = (self.folder / "tmp" / "broker.log").open("w")
        with (
            log,
            subprocess.Popen(
                self.command(script), env=self.environment(), stdout=log, stderr=log
            ) as child,
        ):
            try:
                while not ports.exists():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(0.05)
                        raise AssertionError((self.folder / "tmp" / "broker.log").read_text())
                yield json.loads(ports.read_text())
            finally:
                # unshare ignores signals; its child is the broker, which has replaced the shells
                for broker in children(child.pid):
                    os.kill(broker, signal.SIGTERM)
                assert child.wait(DEADLINE_S) == 0


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory, deb: Path) -> Iterator[Debian]:
    folder = tmp_path_factory.mktemp("debian") / "root"
    folder.mkdir(mode=0o755)  # those of pytest are closed to other users
    try:
        yield Debian(folder)
    finally:
        mounts = Path("/proc/self/mountinfo").read_text()
        assert f" {folder}" not in mounts  # otherwise what is mounted would be removed as well
        shutil.rmtree(folder)


def http(address: str, path: str, body: bytes | None = None) -> bytes:
    import urllib.request

    with urllib.request.urlopen(f"http://{address}{path}", body, timeout=DEADLINE_S) as answer:
        content: bytes = answer.read()
        return content


async def crossed(addresses: dict[str, str]) -> bytes:
    """Publish with NSQ, consume with NATS."""
    connection = await nats.connect(f"nats://{addresses['nats']}")
    taken = await connection.subscribe("orders.eu")
    await connection.flush()
    where = addresses["nsq_http"]
    await asyncio.to_thread(http, where, "/pub?topic=orders.eu", b"two coffees")
    message = await taken.next_msg(DEADLINE_S)
    await connection.close()
    return message.data


def depth(addresses: dict[str, str]) -> int:
    found: dict[str, Any] = json.loads(http(addresses["nsq_http"], "/stats?format=json"))
    return sum(topic["depth"] for topic in found["topics"])


def test_the_life_of_a_package(deb: Path, debian: Debian, tmp_path: Path) -> None:
    debian.install(deb)
    assert debian.facts(CONFIG) == "640 root:twinwire"
    assert debian.facts(DATA) == "750 twinwire:twinwire"
    assert "nologin" in debian.run("getent passwd twinwire")
    unit = (debian.folder / "usr/lib/systemd/system/twinwire.service").read_text()
    for program in re.findall(r"(?m)^Exec\w+=(\S+)", unit):
        assert debian.exists(program.removeprefix("/")), program
    assert debian.exists("etc/systemd/system/multi-user.target.wants/twinwire.service")
    debian.run("twinwire check-config -c /etc/twinwire/twinwire.toml && ! command -v gcc")
    with debian.broker() as addresses:
        assert asyncio.run(crossed(addresses)) == b"two coffees"

    # an upgrade keeps the administrator's changes and the messages
    config = debian.folder / CONFIG
    changed = config.read_text() + "\n# mine\n"
    config.write_text(changed)
    debian.install(upgraded(deb, tmp_path))
    assert config.read_text() == changed
    assert debian.facts(CONFIG) == "640 root:twinwire"
    assert "0.1.0-2" in debian.run("dpkg-query -W twinwire")
    with debian.broker() as addresses:
        assert depth(addresses) == 1

    # a configuration that was lost is installed again, readable for the broker
    config.unlink()
    debian.run(f"dpkg --force-confmiss -i /tmp/{deb.name}")
    assert debian.facts(CONFIG) == "640 root:twinwire"

    # whatever installed the package: a purge can ask only what is registered
    assert "twinwire/remove-data: false" in debian.run("debconf-show twinwire")

    debian.run("apt-get remove -q -y twinwire")
    assert not debian.exists("opt/twinwire")
    assert not debian.exists("usr/bin/twinwire")
    assert debian.exists(CONFIG)
    assert debian.exists(f"{DATA}/logs")

    # purging keeps messages, unless their removal was asked for
    debian.run("apt-get purge -q -y twinwire")
    assert not debian.exists("etc/twinwire")
    assert debian.exists(f"{DATA}/logs")
    debian.install(deb)
    answer = "twinwire twinwire/remove-data boolean true"
    debian.run(f"echo '{answer}' | debconf-set-selections; apt-get purge -q -y twinwire")
    left = debian.run("find / -xdev -name '*twinwire*' -not -path '/tmp/*' -not -path '/proc/*'")
    # as every package's: apt's own copy of the scripts' states, and no file of ours
    assert [path for path in left.split() if not path.startswith("/var/cache/")] == []


def upgraded(deb: Path, folder: Path) -> Path:
    """The same package as a later version."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^(Version: .*-)1$", r"\g<1>2", control.read_text()))
    later = folder / deb.name.replace("-1_", "-2_")
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, later]
    subprocess.run(command, check=True, capture_output=True)
    return later


def test_lintian_finds_no_error(deb: Path) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("needs lintian")
    # Whoever publishes a package sets DEBEMAIL.
    hosts = "bogus-mail-host,bogus-mail-host-in-debian-changelog"
    command = ["lintian", "--fail-on", "error", "--suppress-tags", hosts, str(deb)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
