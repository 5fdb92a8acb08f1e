"""The files for systemd."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker.config.check import opened
from broker.config.config import Config
from broker.net.activation import name_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging" / "systemd"
SERVICE = FOLDER / "twinwire.service"
SYSTEMD = Path("/lib/systemd/systemd")
EXPOSURE_MAX = 2.0


def test_the_service_is_hardened() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze, of systemd")
    command = ["systemd-analyze", "--no-pager", "security", "--offline=true", str(SERVICE)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if "offline" in found.stderr:
        pytest.skip("systemd is older than version 250")
    level = re.search(r"Overall exposure level for .*: ([\d.]+)", found.stdout)
    assert level is not None, found.stdout + found.stderr
    assert float(level[1]) <= EXPOSURE_MAX


def test_the_units_are_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze, of systemd")
    for path in FOLDER.glob("twinwire*.s*e*t"):
        shutil.copy2(path, tmp_path)
    text = SERVICE.read_text().replace("/opt/twinwire/bin/twinwire", "/bin/true")
    (tmp_path / SERVICE.name).write_text(text)  # the program is not installed here
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    command = ["systemd-analyze", "--man=no", "verify", *units]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_sockets_have_the_names_and_addresses_of_the_configuration() -> None:
    """Otherwise the broker refuses them."""
    wanted = {name_of(key): str(address) for key, address in opened(Config())}
    units = sorted(FOLDER.glob("*.socket"))
    assert units
    for path in units:
        unit = configparser.ConfigParser()
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(path)
        section = unit["Socket"]
        assert section["ListenStream"] == wanted[section["FileDescriptorName"]]
        assert section["Service"] == SERVICE.name


# A service manager of its own, in which nothing else of the machine runs.
MANAGER = """
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user
export XDG_RUNTIME_DIR=/run/user HOME={folder} XDG_CONFIG_HOME={folder}/config
{systemd} --user >{folder}/log 2>&1 &
until systemctl --user show-environment >/dev/null 2>&1; do sleep 0.05; done
"""


@pytest.mark.skipif(
    os.geteuid() != 0
    or not all(map(shutil.which, ("unshare", "systemctl")))
    or not SYSTEMD.exists()
    or Path("/run/systemd/system").exists(),
    reason="needs root and systemd, on a machine that systemd does not run",
)
def test_sockets_stay_open_while_the_broker_restarts(tmp_path: Path) -> None:
    """With the commands of the guide, after the installation has started the service."""
    units = tmp_path / "config" / "systemd" / "user"
    units.mkdir(parents=True)
    listeners = {"MONITOR_LISTEN": 0, "NSQ_HTTP": 0, "BULK_LISTEN": 0, "CONSOLE_LISTEN": 0}
    for name in ("nats", "nsq"):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listeners[f"{name.upper()}_LISTEN"] = port = taken.getsockname()[1]
        text = (FOLDER / f"twinwire-{name}.socket").read_text()
        text, count = re.subn(r"(?m)^(ListenStream=127.0.0.1:).*", rf"\g<1>{port}", text)
        assert count == 1
        (units / f"twinwire-{name}.socket").write_text(text)
    kept = re.findall(r"(?m)^(?:Type|NotifyAccess|Restart\w*)=.*\n", SERVICE.read_text())
    environment = {f"TWINWIRE_{key}": f"127.0.0.1:{port}" for key, port in listeners.items()}
    environment |= {"TWINWIRE_SERVER_DATA": str(tmp_path / "data"), "PYTHONPATH": str(ROOT)}
    unit = ["[Service]\n", *kept, f"ExecStart={sys.executable} -m broker serve\n"]
    unit += [f"Environment={key}={value}\n" for key, value in environment.items()]
    (units / SERVICE.name).write_text("".join(unit))

    guide = (ROOT / "docs" / "operate" / "install.md").read_text()
    section = guide.partition("\n## Socket activation\n")[2].partition("\n## ")[0]
    *enable, stop = re.findall(r"(?m)^    sudo (systemctl .*)", section)
    names = "twinwire-nats.socket twinwire-nsq.socket"
    state = f"systemctl is-active {names} twinwire | tr '\\n' ' '"
    opened = f"systemctl show -P ActiveEnterTimestampMonotonic {names} | tr '\\n' ' '"
    again = '[ "$(systemctl show -P MainPID twinwire)" = "$killed" ]'
    again += " || ! systemctl is-active --quiet twinwire"
    script = [
        "systemctl start twinwire", *enable, state,
        opened, "systemctl restart twinwire", opened,
        'killed=$(systemctl show -P MainPID twinwire); kill -9 "$killed"',
        f"while {again}; do sleep 0.05; done", opened,
        stop, f"{state} || true",
    ]  # fmt: skip
    text = MANAGER.format(folder=tmp_path, systemd=SYSTEMD)
    text += "\n".join(script).replace("systemctl ", "systemctl --user ")
    command = ["unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    ended = subprocess.run(
        [*command, "bash", "-ec", text], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.split()
    assert lines[:3] == ["active"] * 3
    assert lines[3:5] == lines[5:7] == lines[7:9]
    assert lines[9:] == ["inactive"] * 3
