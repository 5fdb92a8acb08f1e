"""A server that is stopped under uploads ends without a traceback."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import threading

import pytest
from conftest import StartBroker
from support import Server
from support.bulk.writer import BulkWriter
from support.clients.bulk import BulkClient
from support.clients.upload import block

pytestmark = pytest.mark.only_ours

DATA = block([bytes(1000)] * 100)


def upload(server: Server, number: int, seen: list[int], begun: threading.Barrier) -> None:
    """Blocks of attempts, one after the other, until the server is gone."""
    with (
        contextlib.suppress(OSError, http.client.HTTPException, AssertionError),
        BulkClient(server.bulk) as client,
    ):
        writer = BulkWriter(client, f"w{number}")
        for attempt in itertools.count():
            seen.append(writer.post(1, "orders", number, attempt, DATA).status)
            if not attempt:
                begun.wait()


def test_stop_under_uploads(start_broker: StartBroker) -> None:
    server = start_broker({})
    seen: list[int] = []
    begun = threading.Barrier(9)
    threads = [threading.Thread(target=upload, args=(server, n, seen, begun)) for n in range(8)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    assert server.stop() == 0
    for thread in threads:
        thread.join(30)
    assert set(seen) <= {200, 503}
    log = server.log_since()
    assert "Traceback" not in log
    assert "ERROR" not in log
