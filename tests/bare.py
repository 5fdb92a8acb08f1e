"""Runs a command as on a machine that has Python, a C compiler and make, but not the programs that
tests compare with or drive: python tests/bare.py COMMAND [ARGUMENT ...]

The command gets a PATH with links to all programs of the machine except those, and an empty home,
so that a test that needs one of them and does not say so fails here as it would there.
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
