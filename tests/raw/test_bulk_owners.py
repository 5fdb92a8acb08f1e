"""A writer of the bulk API belongs to the token that used it first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import StartBroker
from support import Server
from support.bulk.writer import BulkWriter, bodies
from support.clients.bulk import BulkClient
from support.clients.upload import block

from broker.base.durable import unsealed

pytestmark = pytest.mark.only_ours

EPOCH_MAX = 2**63 - 1
TOKENS = """
pipeline    p-1     read,write
stranger    s-1     read,write
reader      r-1     read
"""


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(TOKENS)
    return file


@pytest.fixture
def server(start_broker: StartBroker, tokens: Path) -> Server:
    return start_broker({"bulk": {"token_file": str(tokens)}})


def commit(server: Server, token: str, epoch: int, row: bytes, name: str = "w") -> str:
    """What became of it: the state, or the error."""
    with BulkClient(server.bulk, token) as client:
        writer = BulkWriter(client, name)
        data = block([row])
        staged = writer.post(epoch, "orders", 0, f"a{epoch}", data)
        answer = writer.commit(epoch, {"orders": [[0, f"a{epoch}", len(data)]]})
        if answer.status != 200:
            assert staged.status == answer.status == 403
            return str(answer.json["error"])
        return str(answer.json["topics"]["orders"]["state"])


def state_file(server: Server) -> Path:
    return server.data / "staged" / "w" / "state.json"


def kept(server: Server) -> Any:
    return json.loads(unsealed(state_file(server).read_bytes()))


FOREIGN = "the writer w belongs to another token than stranger"


def test_a_stranger_cannot_raise_the_epoch(server: Server) -> None:
    assert commit(server, "p-1", 1, b"one") == "committed"
    assert commit(server, "s-1", EPOCH_MAX, b"foreign") == FOREIGN
    server.restart()
    assert commit(server, "s-1", EPOCH_MAX, b"foreign") == FOREIGN
    assert commit(server, "p-1", 2, b"two") == "committed"
    assert commit(server, "s-1", EPOCH_MAX, b"own", name="another") == "committed"
    with BulkClient(server.bulk, "r-1") as client:
        assert bodies(client, "orders", 4) == [b"one", b"two", b"own"]


def test_the_first_block_binds_the_writer(server: Server) -> None:
    with BulkClient(server.bulk, "p-1") as client:
        named = BulkWriter(client, "w").stage(1, "orders", 0, "a", [b"one"])
    server.kill()
    server.start()
    with BulkClient(server.bulk, "s-1") as client:
        foreign = BulkWriter(client, "w")
        assert foreign.commit(1, {"orders": [named]}).status == 403
        assert foreign.drop(1).status == 403
        assert foreign.show() == {"error": FOREIGN}
    with BulkClient(server.bulk, "p-1") as client:
        found = BulkWriter(client, "w").committed(1, {"orders": [named]})
    assert found["orders"]["state"] == "committed"


def test_who_may_not_write_binds_nothing(server: Server) -> None:
    with BulkClient(server.bulk, "r-1") as client:
        assert BulkWriter(client, "w").commit(1, {}).status == 403
    assert not state_file(server).exists()
    assert commit(server, "p-1", 1, b"one") == "committed"


def test_a_new_token_of_the_same_name_goes_on(server: Server, tokens: Path) -> None:
    assert commit(server, "p-1", 1, b"one") == "committed"
    server.stop()
    tokens.write_text(TOKENS.replace("p-1", "p-2"))
    server.start()
    assert commit(server, "p-2", 2, b"two") == "committed"


def test_a_writer_from_before_there_were_tokens(start_broker: StartBroker, tokens: Path) -> None:
    server = start_broker({})
    assert commit(server, "", 1, b"one") == "committed"
    server.stop()
    # older versions wrote neither an owner nor a checksum
    state = kept(server)
    assert state.pop("owner") is None
    state_file(server).write_text(json.dumps(state))
    server = start_broker({"bulk": {"token_file": str(tokens)}}, server.data)
    assert commit(server, "p-1", 1, b"one") == "already"
    assert commit(server, "s-1", EPOCH_MAX, b"foreign") == FOREIGN
    assert commit(server, "p-1", 2, b"two") == "committed"
    server.stop()
    # without tokens everybody may do everything, and changes no owner
    server = start_broker({}, server.data)
    assert commit(server, "", 3, b"three") == "committed"
    assert kept(server)["owner"] == "pipeline"
