"""JetStream with async-nats: streams, consumers, buckets, and an object of a gigabyte.

It runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.nats_file import FileServer

HERE = Path(__file__).parent / "rust_jetstream"
BUILD_S, RUN_S = 900, 300
OBJECT_MIB = 1024

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_S + RUN_S),
    pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed"),
]


def test_everyday_programs(tmp_path: Path) -> None:
    target = tmp_path / "target"
    build = ["cargo", "build", "--quiet", "--locked", "--target-dir", str(target)]
    subprocess.run(build, cwd=HERE, check=True, timeout=BUILD_S)
    server = FileServer(tmp_path / "server", f'jetstream {{ store_dir: "{tmp_path}/store" }}\n')
    try:
        done = subprocess.run(
            [target / "debug" / "everyday", f"nats://{server.address}", str(OBJECT_MIB)],
            check=False,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    assert f"object of {OBJECT_MIB} MiB" in done.stdout
