"""Builds the source distribution and a manylinux wheel for each Python that is found.

    python tools/wheels.py [--python 3.12]... [--out dist]

Each wheel is made from the source distribution, in a virtual environment of its own, for the
machine's architecture: on an arm64 machine this makes arm64 wheels. auditwheel finds the oldest
glibc that a wheel runs with, which follows from the machine that it is built on: wheels that are
published are built in the images of the manylinux project ([tool.cibuildwheel] in pyproject.toml).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
OLDEST = 11  # of Python 3: requires-python in pyproject.toml
NEWEST = 14
# Prints nothing, and fails unless modules can be compiled for this Python.
USABLE = """
import ensurepip, sys, sysconfig, pathlib, venv
include = pathlib.Path(sysconfig.get_paths()["include"])
sys.exit(sys.version_info[:2] != (3, {0}) or not (include / "Python.h").exists())
"""


def interpreters() -> dict[str, Path]:
    """The Pythons of this machine that can build a wheel, by version, such as 3.12."""
    found = {}
    for minor in range(OLDEST, NEWEST + 1):
        for program in _candidates(minor):
            command = [program, "-c", USABLE.format(minor)]
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                found[f"3.{minor}"] = program
                break
    return found


def _candidates(minor: int) -> list[Path]:
    """Programs that may be this Python: those of pyenv, the newest first, and the one on PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(
        (root / "versions").glob(f"3.{minor}.*/bin/python"),
        key=lambda path: [int(number) for number in re.findall(r"\d+", path.parents[1].name)],
    )
    on_path = shutil.which(f"python3.{minor}")
    return [*reversed(installed), *([Path(on_path)] if on_path else [])]


def source(out: Path) -> Path:
    """The source distribution of this tree."""
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT)
    return max(out.glob("twinwire-*.tar.gz"), key=lambda path: path.stat().st_mtime_ns)


def wheel(archive: Path, version: str, python: Path, out: Path) -> Path:
    """The repaired wheel for one Python."""
    work = WORK / version
    shutil.rmtree(work, ignore_errors=True)
    run(python, "-m", "venv", work / "venv")
    own = work / "venv" / "bin" / "python"
    unpack(archive, work)
    tree = work / archive.name.removesuffix(".tar.gz")
    run(own, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1")
    run(own, "-m", "pip", "install", "--quiet", "--group", f"{tree / 'pyproject.toml'}:build")
    make = [own, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", work / "raw"]
    run(*make, tree, LDSHARED=linker(own))
    (raw,) = (work / "raw").glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", work / "repaired", raw)
    (repaired,) = (work / "repaired").glob("*.whl")
    shutil.rmtree(tree)
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(repaired, out))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a source distribution. Debian 12's `tarfile` has no filters, without which newer ones
    warn."""
    run("tar", "-xf", archive, "-C", folder)


def linker(python: Path) -> str:
    """The linker of this Python, without the folder of libraries that some are built with: a wheel
    must not name folders of the machine that made it."""
    ask = "import sysconfig; print(sysconfig.get_config_var('LDSHARED'))"
    found = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return " ".join(word for word in found.stdout.split() if not word.startswith("-Wl,-rpath"))


def run(*command: str | Path, **more: str) -> None:
    """Run a program, with `more` in its environment; its failure ends this one. auditwheel looks
    for patchelf on PATH. To pip, what is on PYTHONPATH is installed already: a clone with the
    metadata that a build leaves there is not."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TWINWIRE_BUILD": "release",
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or commit_time(),
        **more,
    }
    words = [str(word) for word in command]
    if code := subprocess.run(words, env=environment, check=False).returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {code}")


def commit_time() -> str:
    """Of files in the packages, so that the same commit makes the same packages."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "1577836800"  # the first moment of 2020


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", metavar="3.N", help="only these versions")
    parser.add_argument("--sdist-only", action="store_true", help="no wheels")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    options = parser.parse_args()
    if options.sdist_only:
        print(source(options.out))
        return 0
    found = interpreters()
    wanted = options.python or list(found)
    if not wanted or (absent := set(wanted) - set(found)):
        names = ", ".join(sorted(absent if wanted else {"3.11 or newer"}))
        raise SystemExit(f"no Python {names} with venv and Python.h on this machine")
    archive = source(options.out)
    print(archive)
    for version in wanted:
        print(wheel(archive, version, found[version], options.out), flush=True)
    supported = [f"3.{minor}" for minor in range(OLDEST, NEWEST + 1)]
    if missing := [version for version in supported if version not in found]:
        print(f"not built, because this machine does not have them: Python {', '.join(missing)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
