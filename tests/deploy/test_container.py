"""The container image: built from the Dockerfile by buildah, and run as a container engine runs it.

The base is a Debian of debootstrap with Python. A container here is the image's root, read-only,
with a volume for /data, in namespaces of its own: the broker is process 1, has the ports of the
image, the user of the image and no capability.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PACKAGES = "ca-certificates,python3,python3-dev,python3-pip,python3-venv"
BASE, IMAGE = "localhost/python-base", "localhost/twinwire"
DEADLINE_S = 120.0
NEEDED = ("buildah", "debootstrap", "unshare", "nsenter", "setpriv", "ip", "tar", "git")
# Settings of this machine for pip and TLS, for the build only.
SHARED = ("/etc/ssl/certs", "/etc/pip.conf")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, NEEDED)),
        reason=f"needs root, {', '.join(NEEDED)}",
    ),
]


class Buildah:
    """The program, with its images and containers below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, cwd: Path | None = None) -> str:
        command = ["buildah", f"--root={self.folder}/store", f"--runroot={self.folder}/run"]
        command += ["--storage-driver=vfs", *words]
        found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
        assert found.returncode == 0, f"{words}\n{found.stdout}\n{found.stderr}"
        return found.stdout.strip()

    def make_base(self) -> None:
        """An image with Python in the places of the official one."""
        root = self.folder / "debian"
        source = "http://deb.debian.org/debian"
        include = f"--include={PACKAGES}"
        command = ["debootstrap", "--variant=minbase", include, SUITE, str(root), source]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no Debian {SUITE} can be made here: {made.stdout[-500:]}")
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        packed = self.folder / "base.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(packed), "."], check=True)
        container = self("from", "scratch")
        self("add", "--quiet", container, str(packed), "/")
        path = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        self("config", "--env", f"PATH={path}", container)
        self("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(root)
        packed.unlink()

    def build(self, context: Path) -> dict[str, Any]:
        """The image; its configuration."""
        shared = [f"--volume={path}:{path}:ro" for path in SHARED if Path(path).exists()]
        self(
            "build", "--format=docker", "--isolation=chroot", "--network=host", "--pull=never",
            "--quiet", *shared, "--build-arg", f"BASE={BASE}", "--tag", IMAGE, ".", cwd=context,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(self("inspect", "--type", "image", IMAGE))
        config: dict[str, Any] = found["Docker"]["config"]
        return config

    def root_of_image(self) -> Path:
        return Path(self("mount", self("from", "--pull-never", IMAGE)))


class Container:
    """The image's root as a container, and what an engine does with one."""

    def __init__(self, root: Path, config: dict[str, Any], data: Path) -> None:
        self.root, self.config, self.data = root, config, data
        self.log = data.with_suffix(".log")
        self.child: subprocess.Popen[bytes] | None = None
        self.process_1 = 0

    def _inside(self, command: list[str]) -> list[str]:
        """In the root with the image's user and environment, without capabilities."""
        user, _, group = self.config["User"].partition(":")
        assert user.isdigit()
        assert int(user) != 0
        drop = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        enter = f"cd {self.config['WorkingDir']} && exec " + shlex.join(command)
        return [
            "chroot", str(self.root), "env", "-i", *self.config["Env"],
            "setpriv", f"--reuid={user}", f"--regid={group}", *drop, "sh", "-ec", enter,
        ]  # fmt: skip

    def start(self, *command: str) -> None:
        words = [*self.config["Entrypoint"], *(command or self.config["Cmd"])]
        user, _, group = self.config["User"].partition(":")
        self.data.mkdir(exist_ok=True)
        os.chown(self.data, int(user), int(group))
        setup = (
            f"ip link set lo up; mount --bind {self.root} {self.root}; "
            f"mount --bind {self.data} {self.root}/data; mount -t proc proc {self.root}/proc; "
            f"mount --bind -o remount,ro {self.root}; exec "
        )
        unshare = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork"]
        with self.log.open("wb") as log:
            script = [
                *unshare,
                "--kill-child",
                "sh",
                "-ec",
                setup + shlex.join(self._inside(words)),
            ]
            self.child = subprocess.Popen(script, stdout=log, stderr=log)
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children")
        deadline = time.monotonic() + DEADLINE_S
        while "ready" not in self.log.read_text():
            assert self.child.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            with_deadline(self.child)
        self.process_1 = int(children.read_text().split()[0])

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the running container, as `docker exec`."""
        enter = ["nsenter", f"--target={self.process_1}", "--mount", "--pid", "--net", "--ipc"]
        return subprocess.run(
            [*enter, *self._inside(list(command))], capture_output=True, text=True, check=False,
            timeout=DEADLINE_S,
        )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process_1, number)

    def ended(self) -> int:
        assert self.child is not None
        return self.child.wait(DEADLINE_S)


def with_deadline(child: subprocess.Popen[bytes]) -> None:
    """A short wait that an exit of the process ends."""
    try:
        child.wait(0.05)
    except subprocess.TimeoutExpired:
        return


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the repository, as a clone has them."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this tree is not a clone")
    tree = tmp_path_factory.mktemp("context")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def image(
    tmp_path_factory: pytest.TempPathFactory, context: Path
) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("image")
    buildah = Buildah(folder)
    try:
        buildah.make_base()
        config = buildah.build(context)
        root = buildah.root_of_image()
        yield root, config
    finally:
        subprocess.run(
            ["buildah", f"--root={folder}/store", f"--runroot={folder}/run",
             "--storage-driver=vfs", "umount", "--all"], check=False, capture_output=True,
        )  # fmt: skip
        mounts = Path("/proc/self/mountinfo").read_text()
        assert f" {folder}" not in mounts  # otherwise what is mounted would be removed as well
        shutil.rmtree(folder)


@pytest.fixture
def container(image: tuple[Path, dict[str, Any]], tmp_path: Path) -> Iterator[Container]:
    for folder in (tmp_path, tmp_path.parent):
        folder.chmod(0o755)  # those of pytest are closed to other users
    made = Container(*image, tmp_path / "data")
    yield made
    if made.child is not None and made.child.poll() is None:
        made.child.kill()
        made.child.wait(DEADLINE_S)


def test_the_life_of_a_container(container: Container) -> None:
    """With the image's own command, ports and health check; the root is read-only."""
    container.start()
    assert container.run("touch", "/opt/twinwire/x").returncode != 0
    assert container.run("touch", "/tmp/x").returncode != 0
    status = container.run("cat", "/proc/1/status").stdout
    assert "\nUid:\t10001\t10001\t10001\t10001\n" in status
    assert "\nCapBnd:\t0000000000000000\n" in status
    kind, *check = container.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    healthy = container.run(*check)
    assert (healthy.returncode, healthy.stdout) == (0, '{"status":"ok"}\n'), healthy.stderr
    assert container.run("twinwire", "health").returncode == 0
    assert container.run("twinwire", "pub", "orders", "two coffees").returncode == 0

    container.signal(signal.SIGHUP)  # a reload, not the end
    assert container.run(*check).returncode == 0
    container.signal(signal.Signals[container.config["StopSignal"]])
    assert container.ended() == 0

    # the same volume in a new container
    container.start()
    taken = container.run("twinwire", "sub", "--nsqd-tcp-address=127.0.0.1:4150", "-n1", "orders")
    assert taken.stdout == "two coffees\n", taken.stderr
    container.signal(signal.SIGINT)
    assert container.ended() == 0


def test_the_image_has_nothing_that_a_broker_does_not_need(
    image: tuple[Path, dict[str, Any]],
) -> None:
    root, config = image
    home = root / "opt/twinwire"
    assert not list(root.glob("src*"))
    assert not (root / "usr/bin/gcc").exists()
    assert not list(home.glob("lib/python*/site-packages/pip"))
    assert list(home.glob("lib/python*/site-packages/broker/**/*.pyc"))  # the root is read-only
    assert set(config["ExposedPorts"]) == {"4222/tcp", "8222/tcp", "4150/tcp", "4151/tcp"}
    assert list(config["Volumes"]) == ["/data"]


def test_settings_come_from_the_environment(container: Container) -> None:
    """Also a wrong one: exit code 2, and the reason in the log."""
    container.config = {**container.config, "Env": [*container.config["Env"]]}
    container.config["Env"] += ["TWINWIRE_LOG_FORMAT=json", "TWINWIRE_NATS_LISTEN="]
    container.start()
    lines = [json.loads(line) for line in container.log.read_text().splitlines()]
    (ready,) = [line for line in lines if " ready" in line["message"]]
    assert "nsq" in ready
    assert "nats" not in ready
    container.signal(signal.SIGTERM)
    assert container.ended() == 0
    container.config["Env"] += ["TWINWIRE_NSQ_LISTEN=nowhere"]
    with pytest.raises(AssertionError, match=r"nsq\.listen"):
        container.start()
    assert container.ended() == 2
