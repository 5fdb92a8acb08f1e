"""The wheel, built from the source distribution and installed where there is no compiler."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = "{}.{}".format(*sys.version_info)
DEADLINE_S = 120.0
LISTENERS = ("nats", "monitor", "nsq", "nsq-http", "bulk", "console")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TWINWIRE_TEST_WHEEL: one that is built already."""
    if ready := os.environ.get("TWINWIRE_TEST_WHEEL"):
        return Path(ready)
    pytest.importorskip("auditwheel", reason="`make wheel` installs it")
    out = tmp_path_factory.mktemp("dist")
    tool = str(ROOT / "tools" / "wheels.py")
    made = subprocess.run(
        [sys.executable, tool, "--python", VERSION, "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (found,) = out.glob("*.whl")
    return found


def test_it_is_for_many_linuxes(wheel: Path) -> None:
    assert "-manylinux_2_" in wheel.name


def test_it_has_each_module_its_types_and_data_and_no_source(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = [path for path in (ROOT / "broker").rglob("*") if path.is_file()]
    wanted = {path for path in package if path.suffix in {".py", ".pyi", ".pxd", ".h"}}
    wanted.add(ROOT / "broker" / "py.typed")
    assert {str(path.relative_to(ROOT)) for path in wanted} - names == set()
    compiled = {name.partition(".")[0] for name in names if name.endswith(".so")}
    sources = [path.relative_to(ROOT) for path in package if path.suffix == ".pyx"]
    assert {f"broker/{path.parts[1]}/_compiled" for path in sources} == compiled
    assert any(name.endswith(".data/data/share/twinwire/twinwire.toml") for name in names)
    strange = {name for name in names if name.endswith((".pyx", ".c", ".pyc"))}
    assert strange == set()
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"broker", "pyspark_twinwire", "twinwire"}


def test_it_names_no_folder_of_the_machine_that_made_it(wheel: Path, tmp_path: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    with zipfile.ZipFile(wheel) as packed:
        modules = [name for name in packed.namelist() if name.endswith(".so")]
        packed.extractall(tmp_path, modules)
    command = ["readelf", "--wide", "--dynamic", *(str(tmp_path / name) for name in modules)]
    linked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert linked.count("Dynamic section") == len(modules)
    assert "RUNPATH" not in linked
    assert "RPATH" not in linked


def test_it_is_stripped(wheel: Path, tmp_path: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    with zipfile.ZipFile(wheel) as packed:
        modules = [name for name in packed.namelist() if name.endswith(".so")]
        packed.extractall(tmp_path, modules)
    command = ["readelf", "--wide", "--sections", *(str(tmp_path / name) for name in modules)]
    sections = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert sections.count(" .dynsym ") == len(modules)
    assert " .symtab " not in sections
    assert " .debug_" not in sections


def test_it_is_installed_and_serves_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """In a new environment whose PATH has its own programs alone."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    kept = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.endswith("_proxy")}
    environment = kept | {"PATH": str(programs), "HOME": str(tmp_path)}
    assert shutil.which("gcc", path=environment["PATH"]) is None
    install = [programs / "pip", "install", "--quiet", str(wheel)]
    subprocess.run(install, env=environment, cwd=tmp_path, check=True)
    ports = tmp_path / "ports"
    flags = [word for name in LISTENERS for word in (f"--{name}", "127.0.0.1:0")]
    command = [programs / "twinwire", "serve", *flags, "--ports-file", ports]
    with subprocess.Popen(command, env=environment, cwd=tmp_path) as child:
        try:
            while not ports.exists():
                try:
                    child.wait(0.05)
                except subprocess.TimeoutExpired:
                    continue
                raise AssertionError(f"ended with {child.returncode}")
            found = json.loads(ports.read_text())
            assert set(found) == {name.replace("-", "_") for name in LISTENERS}
            for path in ("", "app.js", "vendor/ui.js"):
                with urllib.request.urlopen(f"http://{found['console']}/{path}") as answer:
                    assert answer.status == 200
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(DEADLINE_S) == 0
