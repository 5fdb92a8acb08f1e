"""JetStream with nats.go: pull and push consumers, buckets and objects in one session.

It runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.nats_file import FileServer


def test_everyday_programs(go_jetstream: Callable[..., object], tmp_path: Path) -> None:
    server = FileServer(tmp_path / "server", f'jetstream {{ store_dir: "{tmp_path}/store" }}\n')
    try:
        done = go_jetstream(url=f"nats://{server.address}")
    finally:
        server.close()
    assert done.returncode == 0, done.stderr.decode()  # type: ignore[attr-defined]
    assert done.stdout == b"ok\n"  # type: ignore[attr-defined]
