"""The files for systemd."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from broker.config.check import opened
from broker.config.config import Config
from broker.net.activation import name_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging" / "systemd"
SERVICE = FOLDER / "twinwire.service"
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
