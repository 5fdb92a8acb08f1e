"""Publishing to a stream of another account, through an import of its subject. Here and on the
original, nats-server 2.14."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from support.clients.nats import Message, NatsClient

if TYPE_CHECKING:
    from support.nats_file import StartServer

CONFIG = """
jetstream {{ store_dir: "{folder}" }}
accounts {{
  A {{ jetstream: enabled, users: [ {{user: owner, password: owner}} ]
      exports: [ {{service: "f.>"}} ] }}
  B {{ users: [ {{user: guest, password: guest}} ]
      imports: [ {{service: {{account: A, subject: "f.>"}}}} ] }}
}}
"""
STREAM = {
    "name": "F", "subjects": ["f.>"], "storage": "memory", "allow_batched": True,
    "max_msg_size": 100,
}  # fmt: skip
START, APPEND, COMMIT, _COMMIT_ONLY, PING = range(5)
OWNER, GUEST = "owner", "guest"


class Publisher(NatsClient):
    """A client that waits for answers."""

    def ask(self, subject: str, data: bytes = b"", headers: bytes = b"", tail: str = "a") -> Any:
        self.pub(subject, data, f"inbox.{tail}", headers)
        return self.answer()

    def answer(self) -> Any:
        """The next answer, with the end of its subject."""
        message: Message = self.message()
        return message.subject.removeprefix("inbox."), json.loads(message.data)


@pytest.fixture
def two(start_nats: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The owner of the stream, and a guest."""
    server = start_nats(CONFIG.format(folder=tmp_path_factory.mktemp("store")))
    with ExitStack() as stack:
        found = {}
        for user in (OWNER, GUEST):
            found[user] = stack.enter_context(Publisher(server.address, user))
            found[user].sub("inbox.>")
        _, made = found[OWNER].ask("$JS.API.STREAM.CREATE.F", json.dumps(STREAM).encode())
        assert made["did_create"]
        yield found


def stored(owner: Publisher, seq: int) -> dict[str, Any]:
    _, found = owner.ask("$JS.API.STREAM.MSG.GET.F", json.dumps({"seq": seq}).encode())
    message: dict[str, Any] = found["message"]
    return message


@pytest.mark.parametrize("user", [OWNER, GUEST])
def test_a_refused_message_is_answered(two: dict[str, Publisher], user: str) -> None:
    """The server answers while it still handles the request."""
    wrong = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 99\r\n\r\n"
    for headers, data, code in ((wrong, b"x", 10071), (b"", bytes(200), 10054)):
        _, answer = two[user].ask("f.a", data, headers)
        assert answer["error"]["err_code"] == code
    assert two[user].ask("f.a", b"x") == ("a", {"stream": "F", "seq": 1})


@pytest.mark.parametrize("user", [OWNER, GUEST])
def test_what_an_import_tells_services_is_not_stored(two: dict[str, Publisher], user: str) -> None:
    both = b"NATS/1.0\r\nA: b\r\nNats-Request-Info: {}\r\n\r\n"
    for headers in (b"", b"NATS/1.0\r\nNats-Request-Info: {}\r\n\r\n", both):
        two[user].ask("f.a", b"x", headers)
    assert "hdrs" not in stored(two[OWNER], 1)
    assert "hdrs" not in stored(two[OWNER], 2)
    assert stored(two[OWNER], 3)["hdrs"] == "TkFUUy8xLjANCkE6IGINCg0K"  # A: b


@pytest.mark.parametrize("user", [OWNER, GUEST])
def test_a_fast_batch(two: dict[str, Publisher], user: str) -> None:
    """Its messages have reply subjects of their own, and few of them are answered."""
    client = two[user]
    for batch in ("one", "two"):  # the second one uses what is known of the inbox
        first = 0 if batch == "one" else 5
        assert client.ask("f.a", b"x", tail=f"{batch}.3.fail.1.{START}.$FI") == (
            f"{batch}.3.fail.1.{START}.$FI", {"type": "ack", "seq": 0, "msgs": 3},
        )  # fmt: skip
        for number in (2, 3):
            client.pub("f.a", b"x", f"inbox.{batch}.3.fail.{number}.{APPEND}.$FI")
        assert client.answer() == (
            f"{batch}.3.fail.3.{APPEND}.$FI", {"type": "ack", "seq": 3, "msgs": 3},
        )  # fmt: skip
        client.pub("f.a", b"x", f"inbox.{batch}.3.fail.4.{APPEND}.$FI")
        tail = f"{batch}.3.fail.5.{COMMIT}.$FI"
        ended = {"stream": "F", "seq": first + 5, "batch": batch, "count": 5}
        assert client.ask("f.a", b"x", tail=tail) == (tail, ended)
    tail = f"none.3.fail.2.{APPEND}.$FI"
    assert client.ask("f.a", b"x", tail=tail)[1]["error"]["err_code"] == 10208
    client.nothing()


def test_batches_of_two_clients_with_one_inbox(two: dict[str, Publisher]) -> None:
    """Each account gets its own answers."""
    for user, batch in ((OWNER, "a"), (GUEST, "b")):
        tail = f"{batch}.10.ok.1.{START}.$FI"
        assert two[user].ask("f.a", b"x", tail=tail)[0] == tail
    for user, batch in ((GUEST, "b"), (OWNER, "a")):
        tail = f"{batch}.10.ok.1.{PING}.$FI"
        found = two[user].ask("f.a", tail=tail)[0]
        if found != tail:  # a second answer to the start, which the original does not let through
            assert found == f"{batch}.10.ok.1.{START}.$FI"
            assert two[user].answer()[0] == tail
    for client in two.values():
        client.nothing()


@pytest.mark.parametrize("reply", ["$FI", ".$FI", "x.1.$FI", "1.ok.1.0.$FI", "b.1.ok.1.0.$FI"])
def test_reply_subjects_that_look_like_those_of_batches(
    two: dict[str, Publisher], reply: str
) -> None:
    """Without an inbox they are ordinary subjects for the import; the server stays up."""
    two[GUEST].pub("f.a", b"x", reply)
    two[GUEST].ping()
    assert two[OWNER].ask("f.a", b"x", tail="z")[0] == "z"
