"""Builds the Debian package for the Python and the architecture of this machine.

    python tools/deb.py [--python /usr/bin/python3] [--wheel FILE] [--out dist]

The package is a virtual environment below /opt/twinwire with a wheel of this tree and what it
depends on, and the files of packaging/: nothing of it meets Debian's own Python packages. It needs
the minor version of Python that it was built with.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
from email.utils import formatdate
from pathlib import Path

import wheels

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
WORK = ROOT / "build" / "deb"
HOME = Path("opt/twinwire")
DOCUMENTS = Path("usr/share/doc/twinwire")
LIBC = "2.34"  # what wheels.py finds on Debian 12
REVISION = 1
SCRIPTS = ("config", "postinst", "postrm", "prerm")
# Who the package is from, as Debian's own tools read it.
MAINTAINER = "{} <{}>".format(
    os.environ.get("DEBFULLNAME", "Twinwire developers"),
    os.environ.get("DEBEMAIL", "twinwire@localhost"),
)


def python_of(program: Path) -> str:
    """The version of a Python, such as 3.11."""
    command = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def debian_version(version: str) -> str:
    """A version of Python packages in Debian's order: 1.0rc1 is before 1.0."""
    return re.sub(r"(?<=\d)\.?((?:a|b|rc|dev)\d+)", r"~\1", version) + f"-{REVISION}"


def environment(root: Path, python: Path, wheel: Path) -> None:
    """Install a wheel and its dependencies below the package's home."""
    home = root / HOME
    wheels.run(python, "-m", "venv", "--without-pip", home)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python3", "install")
    wheels.run(*pip, "--quiet", "--no-compile", "--only-binary=:all:", wheel)
    shutil.rmtree(home / "include")
    for path in (home / "bin").iterdir():
        if path.is_symlink():  # to the Python of Debian
            continue
        if path.name == "twinwire":
            text = path.read_bytes()
            path.write_bytes(text.replace(bytes(home), b"/" + bytes(HOME)))
        else:  # commands of the dependencies, and what activates an environment
            path.unlink()
    config = home / "pyvenv.cfg"
    kept = [line for line in config.read_text().splitlines() if not line.startswith("command")]
    config.write_text("\n".join(kept) + "\n")
    for path in home.rglob("*.dist-info"):
        # pip's notes: the place of the wheel, and a list that names files of the build.
        for name in ("direct_url.json", "REQUESTED"):
            (path / name).unlink(missing_ok=True)
    for path in [*home.rglob("*.a"), *home.rglob("*.pyx")]:
        path.unlink()
    _strip(home)
    # Files of a package do not change, so that their times need not be compared at each start.
    command = [home / "bin" / "python3", "-m", "compileall", "-q", "-j0", "-s", root, "-p", "/"]
    wheels.run(*command, "--invalidation-mode", "unchecked-hash", home / "lib")


def _strip(home: Path) -> None:
    for path in home.rglob("*.so*"):
        if path.is_file() and not path.is_symlink() and "libs" not in path.parent.name:
            wheels.run("strip", "--strip-unneeded", path)


def settle(root: Path) -> None:
    """The files outside of the environment."""
    config = (ROOT / "conf" / "twinwire.toml").read_text()
    changed = config.replace('data = "./data"          ', 'data = "/var/lib/twinwire"', 1)
    assert changed != config
    _write(root / "etc/twinwire/twinwire.toml", changed)
    units = root / "usr/lib/systemd/system"
    for path in sorted((PACKAGING / "systemd").iterdir()):
        if path.suffix in {".service", ".socket"}:
            _write(units / path.name, path.read_text())
    for kind in ("sysusers", "tmpfiles"):
        text = (PACKAGING / "systemd" / f"twinwire.{kind}").read_text()
        _write(root / f"usr/lib/{kind}.d/twinwire.conf", text)
    command = root / "usr/bin/twinwire"
    command.parent.mkdir(parents=True)
    command.symlink_to("/opt/twinwire/bin/twinwire")
    _write(root / "usr/share/lintian/overrides/twinwire", _debian("overrides"))
    for page in (root / HOME / "share/man").glob("man*/*.[1-8]"):
        _compressed(root / "usr/share/man" / page.parent.name / f"{page.name}.gz", page.read_text())


def document(root: Path, version: str) -> None:
    """License and changes."""
    folder = root / DOCUMENTS
    _write(folder / "copyright", _debian("copyright"))
    _compressed(folder / "changelog.gz", (ROOT / "CHANGELOG.md").read_text())
    date = formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    entry = (
        f"twinwire ({version}) stable; urgency=medium\n\n"
        "  * See changelog.gz, the changes of this version.\n\n"
        f" -- {MAINTAINER}  {date}\n"
    )
    _compressed(folder / "changelog.Debian.gz", entry)


def control(root: Path, version: str, python: str) -> None:
    """The folder DEBIAN: metadata, sums, scripts."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    sums = "".join(
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n"
        for path in files
        if path.relative_to(root).parts[0] != "etc"
    )
    size = sum(path.stat().st_size for path in files) // 1024
    major, minor = python.split(".")
    fields = {
        "version": version,
        "maintainer": MAINTAINER,
        "architecture": _output("dpkg", "--print-architecture"),
        "size": size,
        "python": python,
        "python_next": f"{major}.{int(minor) + 1}",
        "libc": LIBC,
    }
    folder = root / "DEBIAN"
    _write(folder / "control", _debian("control").format_map(fields))
    _write(folder / "md5sums", sums)
    for name in ("conffiles", "templates"):
        _write(folder / name, _debian(name))
    for name in SCRIPTS:
        _write(folder / name, _debian(name))
        (folder / name).chmod(0o755)


def build(python: Path, wheel: Path, out: Path) -> Path:
    """The package."""
    shutil.rmtree(WORK, ignore_errors=True)
    root = WORK / "root"
    root.mkdir(parents=True)
    os.umask(0o022)
    version = debian_version(wheel.name.split("-")[1])
    environment(root, python, wheel)
    settle(root)
    document(root, version)
    control(root, version, python_of(python))
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            is_program = path.is_dir() or path.parent.name in {"bin", "DEBIAN"}
            path.chmod(path.stat().st_mode & (0o755 if is_program else 0o644))
    (root / "etc/twinwire/twinwire.toml").chmod(0o640)
    out.mkdir(parents=True, exist_ok=True)
    made = out / f"twinwire_{version}_{_output('dpkg', '--print-architecture')}.deb"
    wheels.run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, made)
    return made


def _debian(name: str) -> str:
    return (PACKAGING / "debian" / name).read_text()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _compressed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"), help="of Debian")
    parser.add_argument("--wheel", type=Path, help="default: it is built")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    options = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", wheels.commit_time())
    wheel = options.wheel
    if wheel is None:
        version = python_of(options.python)
        found = wheels.interpreters()
        if version not in found:
            raise SystemExit(f"no Python {version} with venv and Python.h on this machine")
        archive = wheels.source(WORK.parent / "sdist")
        wheel = wheels.wheel(archive, version, found[version], WORK.parent / "sdist")
    print(build(options.python, wheel.resolve(), options.out.resolve()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
