"""The page about the bulk API: its commands do what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import BrokerFor
from raw.test_bulk_ranges import numbered, publish
from support.clients.bulk import BulkClient, read_frame

pytestmark = pytest.mark.only_ours

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "bulk-api.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_the_examples(broker_for: BrokerFor, tmp_path: Path) -> None:
    server = broker_for({"storage": {"sync": "always"}})
    publish(server, "orders", numbered(1000, size=96))
    with BulkClient(server.bulk) as bulk:
        bulk.await_next("orders", 1001)
    script = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert script.count("curl -s") >= 10
    ended = subprocess.run(
        ["sh", "-eu", "-c", script.replace("curl -s", "curl -sS --fail-with-body")],
        cwd=tmp_path,
        env={**os.environ, "BULK": f"http://{server.bulk}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert '"lag":500' in ended.stdout
    assert '{"deleted":true}' in ended.stdout
    assert len(read_frame((tmp_path / "frame").read_bytes()).records) > 400
