"""JetStream with nats.js: pull and ordered consumers, buckets and objects in one session.

It runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.nats_file import FileServer

PACKAGES = [f"@nats-io/{name}@3.4.0" for name in ("transport-node", "jetstream", "kv", "obj")]
SOURCE = Path(__file__).parent / "nats_js"
INSTALL_S = 50.0
RUN_S = 50.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the program with the client; skips without npm or what it should bring."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm")
    path = tmp_path_factory.mktemp("node") / "program"
    shutil.copytree(SOURCE, path)
    (path / "package.json").write_text('{"type": "module"}')
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
    done = subprocess.run(command, cwd=path, capture_output=True, check=False, timeout=INSTALL_S)
    if done.returncode:
        pytest.skip("nats.js cannot be had")
    return path


def test_everyday_programs(program: Path, tmp_path: Path) -> None:
    server = FileServer(tmp_path / "server", f'jetstream {{ store_dir: "{tmp_path}/store" }}\n')
    try:
        done = subprocess.run(
            ["node", "session.mjs", f"nats://{server.address}"],
            cwd=program,
            capture_output=True,
            check=False,
            timeout=RUN_S,
        )
    finally:
        server.close()
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"ok\n"
