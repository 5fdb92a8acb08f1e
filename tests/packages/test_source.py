"""The source distribution, the release notes, and the workflow that publishes them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What the format of source distributions adds.
ADDED = {"PKG-INFO", "setup.cfg"}
WORKFLOW = ROOT / ".github" / "workflows" / "build.yml"


def git_files() -> set[str]:
    """The files of the repository; skips where it is not a clone."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this tree is not a clone")
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name for name in found.stdout.splitlines() if (ROOT / name).exists()}


def test_the_source_distribution_has_every_file_and_no_other(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    files = git_files()
    tree = tmp_path / "tree"
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    # What a build and tests leave behind is none of it.
    for name in ("broker/engine/old.so", "broker/old.c", "tests/__pycache__/a.pyc", "data/lock"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    script = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(tmp_path)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        members = [member.name.partition("/")[2] for member in packed if member.isfile()]
    names = {name for name in members if not name.startswith("twinwire.egg-info/")}
    assert names - ADDED == files


def test_it_is_unpacked_by_the_python_of_debian_12_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "tools" / "wheels.py"
    spec = importlib.util.spec_from_file_location("wheels", path)
    assert spec is not None
    assert spec.loader is not None
    wheels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wheels)
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as packed:
        packed.add(path, "made/wheels.py")

    def extractall(_self: object, _path: object, _members: object = None) -> None:
        """That of Python 3.11.2, without `filter`, which does nothing here."""

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    wheels.unpack(tmp_path / "made.tar.gz", tmp_path)
    assert (tmp_path / "made" / "wheels.py").read_bytes() == path.read_bytes()


def test_the_debian_package_has_the_program_whatever_is_on_pythonpath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone on PYTHONPATH, where a build has left its metadata, is no installed package."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    deb = importlib.import_module("deb")
    clone = tmp_path / "clone" / "twinwire.egg-info"
    clone.mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: twinwire\nVersion: 0.1.0\n"
    (clone / "PKG-INFO").write_text(metadata)
    monkeypatch.setenv("PYTHONPATH", str(clone.parent))
    wheel = tmp_path / "twinwire-0.1.0-py3-none-any.whl"
    info = "twinwire-0.1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("broker.py", "def entry(): pass\n")
        made.writestr(f"{info}/METADATA", metadata)
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntwinwire = broker:entry\n")
        made.writestr(f"{info}/RECORD", "")
    deb.environment(tmp_path / "root", Path(sys.executable), wheel)
    assert "from broker import entry" in (tmp_path / "root/opt/twinwire/bin/twinwire").read_text()


def notes(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "release_notes.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_release_notes_are_a_section_of_the_changelog() -> None:
    found = notes("0.1.0")
    assert found.returncode == 0
    assert found.stdout.startswith("The first version.\n")
    assert "### Added" in found.stdout
    assert "\n## " not in found.stdout


def test_release_notes_link_to_the_files_of_the_tag() -> None:
    found = notes("0.1.0", "--links", "https://example.org/blob/v0.1.0/")
    targets = re.findall(r"\]\(([^)]+)\)", found.stdout)
    assert targets
    assert all(target.startswith("https://") for target in targets)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["9.9.9"], "CHANGELOG.md has no section for 9.9.9\n"),
        (["0.1"], "CHANGELOG.md has no section for 0.1\n"),
        (["--tag", "v0.1.0"], "the section for 0.1.0 says 'unreleased'; expected YYYY-MM-DD\n"),
    ],
)
def test_releases_without_notes_are_refused(words: list[str], problem: str) -> None:
    """A version that does not exist, or whose section says that it is not released."""
    found = notes(*words)
    assert (found.returncode, found.stderr) == (1, problem)


# --- the workflow


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    return found


def test_the_workflow_is_valid() -> None:
    """Its own language, expressions and shell scripts."""
    if (program := shutil.which("actionlint")) is None:
        pytest.skip("`make originals` builds actionlint")
    found = subprocess.run(
        [program, "-no-color", str(WORKFLOW)], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_only_a_tag_is_published_and_only_after_all_else(workflow: dict[Any, Any]) -> None:
    jobs = workflow["jobs"]
    publish = jobs["publish"]
    assert "startsWith(github.ref, 'refs/tags/v')" in publish["if"]
    assert set(publish["needs"]) == set(jobs) - {"publish"}
    assert publish["permissions"]["id-token"] == "write"
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert workflow["permissions"] == {"contents": "read"}


def test_no_job_has_a_secret_or_lasts_forever(workflow: dict[Any, Any]) -> None:
    assert "secrets." not in WORKFLOW.read_text()
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_jobs_cover_both_architectures_and_each_python(workflow: dict[Any, Any]) -> None:
    jobs = workflow["jobs"]
    arches = {one["arch"] for one in jobs["wheels"]["strategy"]["matrix"]["include"]}
    assert arches == {"x86_64", "aarch64"}
    built = (ROOT / "pyproject.toml").read_text()
    for version in jobs["test"]["strategy"]["matrix"]["python"]:
        assert f'"cp{version.replace(".", "")}-*"' in built


def made(python: Path, tree: Path) -> subprocess.CompletedProcess[str]:
    """`make run` with this Python; pip fails, where make comes so far."""
    (tree / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:1\nretries = 0\n")
    shutil.copy2(ROOT / "Makefile", tree)
    (tree / "pyproject.toml").touch()
    (tree / "broker").mkdir(exist_ok=True)
    return subprocess.run(
        ["make", "run", f"PYTHON={python}"],
        cwd=tree, env=os.environ | {"PIP_CONFIG_FILE": str(tree / "pip.conf")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_make_says_which_python_it_needs_before_it_makes_anything(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # what an older one answers
    old.chmod(0o755)
    for python in (old, tmp_path / "none"):
        ended = made(python, tmp_path)
        assert ended.returncode == 2
        needed = "Python 3.11 or newer is needed: make run PYTHON=python3.12"
        assert needed in ended.stderr.splitlines()
        assert not (tmp_path / ".venv").exists()


def test_make_makes_an_environment_without_pip_again(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    made(Path(sys.executable), tmp_path)
    assert (venv / "bin" / "pip").exists()


def test_make_has_the_targets_of_the_workflow() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = re.findall(r"run: make ([a-z ]+)", WORKFLOW.read_text())
    assert used
    assert {word for words in used for word in words.split() if word.islower()} <= targets
