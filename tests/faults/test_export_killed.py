"""`twinwire export` while its broker is killed: the files have each record once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import Server
from support.fault_proxy import ANSWERED, FaultProxy
from support.live.spark import SYNCED, fill, numbered

pq = pytest.importorskip("pyarrow.parquet")

from broker.cli.tools.export import export  # noqa: E402


def test_in_the_middle_of_a_range(
    start_broker: Callable[..., Server], uniq: str, tmp_path: Path
) -> None:
    server = start_broker(SYNCED)
    fill(server, uniq, [body + bytes(20_000) for body in numbered(500)])

    def die() -> None:
        server.kill()
        server.start()

    out = tmp_path / "files"
    with FaultProxy(server) as proxy:
        proxy.interrupt("GET /bulk/v1/range/", ANSWERED, die, after=1)
        given = [uniq, "--out", str(out), "--bulk-address", str(proxy.address)]
        ended = CliRunner().invoke(export, [*given, "--file-records", "100"])
        assert ended.exit_code == 0, ended.output
        assert proxy.acted.is_set()
    found = [
        n for path in out.rglob("*.parquet") for n in pq.read_table(path)["offset"].to_pylist()
    ]
    assert sorted(found) == list(range(1, 501))
