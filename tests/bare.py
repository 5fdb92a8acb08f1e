"""Runs a command as on a machine that has Python, a C compiler and make, but not the programs that
tests compare with or drive: python tests/bare.py COMMAND [ARGUMENT ...]

The command gets a PATH with links to all programs of the machine except those, and an empty home,
so that a test that needs one of them and does not say so fails here as it would there. Tests in
ALONE are left out: `refuse` keeps them from starting one of the programs on any machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Each hides a program by its whole name.
HIDDEN = re.compile(
    r"go|gofmt|nsq\w*|to_nsq|nats\S*|node|nodejs|npm|npx|java|javac|jshell"
    r"|prometheus|promtool|buildah|debootstrap|systemd-analyze"
    r"|chromium\S*|google-chrome\S*|chrome\S*|pyenv|python(2|3\.([0-9]|10))(\.\d+)?"
)
# Folders whose tests start no program but the broker's and those that stay.
ALONE = (
    "tests/behaviour/",
    "tests/faults/",
    "tests/golden/",
    "tests/powercut/",
    "tests/property/",
    "tests/public/",
    "tests/raw/",
    "tests/unit/bulk/",
    "tests/unit/client/",
    "tests/unit/console/",
    "tests/unit/engine/",
    "tests/unit/net/",
    "tests/unit/protocols/jetstream/",
    "tests/unit/protocols/nsq/",
    "tests/unit/protocols/stan/",
    "tests/unit/server/",
)
KEPT = ("LANG", "LC_ALL", "TZ", "TMPDIR", "CC", "CI", "PIP_INDEX_URL", "PIP_CONFIG_FILE")


def bare_path(folder: Path) -> str:
    """Link the programs that stay into a folder; the first one of a name counts, as on PATH."""
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if ".originals" in place or not Path(place).is_dir():
            continue
        for program in Path(place).iterdir():
            link = folder / program.name
            if not HIDDEN.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def is_left_out(path: str) -> bool:
    """Whether a folder or file, relative to the project's root, is not run on a bare machine."""
    return f"{path}/".startswith(ALONE)


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: a test in ALONE does not get any program that is hidden elsewhere, unless it
    is to test the original."""
    if event != "subprocess.Popen" or os.environ.get("TWINWIRE_TEST_TARGET") == "original":
        return
    program = Path(os.fsdecode(arguments[0])).name  # type: ignore[arg-type]
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if test.startswith(ALONE) and HIDDEN.fullmatch(program):
        raise RuntimeError(
            f"{program} may be missing, and tests/bare.py leaves this test out: {test}"
        )


def main(command: list[str]) -> int:
    """Run it; its exit code."""
    with tempfile.TemporaryDirectory(prefix="twinwire-bare-") as root:
        programs, home = Path(root, "bin"), Path(root, "home")
        programs.mkdir()
        home.mkdir()
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {"PATH": bare_path(programs), "HOME": str(home), "TWINWIRE_TEST_BARE": "1"}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
