"""Publishing to streams over real connections: rights, other protocols, slow disks, subscribers."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from support.clients.nats import Message, NatsClient
from support.clients.peer import RawPeer

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours


class Api:
    """A client, and what it asks one request at a time."""

    def __init__(self, server: Server, user: str = "") -> None:
        self.client = NatsClient(server.nats, user, no_responders=True)
        self.client.sub("_INBOX.api.*")
        self.count = 0

    def ask(self, subject: str, data: bytes = b"", headers: bytes = b"") -> Message:
        self.count += 1
        self.client.pub(subject, data, f"_INBOX.api.{self.count}", headers)
        return self.client.message()

    def json(self, subject: str, data: bytes = b"", headers: bytes = b"") -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask(subject, data, headers).data)
        return answer

    def make(self, **config: Any) -> None:
        config = {"allow_direct": True, **config}
        answer = self.json(f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps(config).encode())
        assert "error" not in answer, answer

    def stored(self, stream: str, seq: int) -> bytes | None:
        message = self.ask(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d}' % seq)
        return None if message.headers.startswith(b"NATS/1.0 404") else message.data


def test_what_nsq_clients_publish_is_stored_once(start_broker: StartBroker) -> None:
    server = start_broker()
    api = Api(server)
    api.make(name="ORDERS", subjects=["orders", "orders.>"])
    url = f"http://{server.nsq_http}/pub?topic=orders"
    for body in (b"one", b"two"):
        with urllib.request.urlopen(url, body, timeout=10) as answer:
            assert answer.read() == b"OK"
    assert api.json("orders", b"three") == {"stream": "ORDERS", "seq": 3}
    with urllib.request.urlopen(url, b"four", timeout=10) as answer:
        assert answer.read() == b"OK"
    assert api.json("orders.eu", b"five") == {"stream": "ORDERS", "seq": 5}
    assert [api.stored("ORDERS", seq) for seq in range(1, 7)] == [
        b"one", b"two", b"three", b"four", b"five", None,
    ]  # fmt: skip


def test_subscribers_receive_what_is_stored_and_what_is_refused(start_broker: StartBroker) -> None:
    server = start_broker()
    api = Api(server)
    api.make(name="S", subjects=["s.>"], max_msg_size=10)
    with NatsClient(server.nats) as subscriber:
        subscriber.sub("s.>")
        assert api.json("s.a", b"short") == {"stream": "S", "seq": 1}
        assert api.json("s.a", b"x" * 11)["error"]["err_code"] == 10054
        assert [subscriber.message().data for _ in range(2)] == [b"short", b"x" * 11]


def test_nobody_answers_on_a_subject_of_no_stream(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="S", subjects=["s.>"])
    assert api.ask("t.a").headers.startswith(b"NATS/1.0 503")
    assert api.ask("$JS.API.DIRECT.GET.NONE", b'{"seq":1}').headers.startswith(b"NATS/1.0 503")


def test_messages_of_many_publishers_come_once_each(start_broker: StartBroker) -> None:
    server = start_broker()
    api = Api(server)
    api.make(name="S", subjects=["s.>"])
    clients = [NatsClient(server.nats) for _ in range(8)]
    for client in clients:
        client.sub("_INBOX.many.*")
    for number in range(250):
        for place, client in enumerate(clients):
            client.pub(f"s.{place}", b"%d" % number, f"_INBOX.many.{place}")
    seqs: set[int] = set()
    for client in clients:  # each hears the answers of all
        got = [json.loads(client.message().data)["seq"] for _ in range(8 * 250)]
        seqs.update(got)
        client.close()
    assert seqs == set(range(1, 2001))
    assert api.json("$JS.API.STREAM.INFO.S")["state"]["messages"] == 2000


def test_a_large_message_and_its_limits(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="S", subjects=["s.>"])
    body = b"x" * 1_000_000
    assert api.json("s.a", body) == {"stream": "S", "seq": 1}
    assert api.stored("S", 1) == body
    block = b"NATS/1.0\r\nA: " + b"h" * 70_000 + b"\r\n\r\n"
    assert api.json("s.a", b"", block)["error"]["err_code"] == 10097


def bodies_read_slowly(start_broker: StartBroker, stored: int, batches: int, turns: int) -> int:
    """How many of the stored bodies of 20,000 bytes one client receives, which requests all of them
    so many times at once, and reads after so many turns of the server."""
    body = b"x" * 20_000
    server = start_broker({"nats": {"max_pending": "4MiB"}})
    api = Api(server)
    api.make(name="S", subjects=["s"])
    for _ in range(stored):
        api.json("s", body)
    with RawPeer(server.nats, receive_buffer=1 << 16, skips_pings=True) as reader:
        reader.read_line()
        reader.send(b'CONNECT {"verbose":false,"headers":true}\r\nSUB to 7\r\n')
        request = b'{"seq":1,"batch":%d}' % stored
        reader.send(b"PUB $JS.API.DIRECT.GET.S to %d\r\n%s\r\n" % (len(request), request) * batches)
        reader.until_taken()
        for _ in range(turns):  # in which the server could send everything
            assert api.stored("S", 1) == body
        sizes = []
        for _ in range(batches * (stored + 1)):  # each ends with a status
            line = reader.read_line().split()
            assert line[0] == b"HMSG"
            whole = reader.read_exact(int(line[-1]) + 2)
            sizes.append(len(whole) - 2 - int(line[-2]))
        return sizes.count(len(body))


def test_a_batch_waits_for_a_client_that_reads_slowly(start_broker: StartBroker) -> None:
    """Its messages wait in the stream, not in the connection, and it is not disconnected."""
    assert bodies_read_slowly(start_broker, stored=600, batches=2, turns=600) == 2 * 600


def test_many_batches_wait_for_a_client_that_reads_slowly(start_broker: StartBroker) -> None:
    """Their first messages alone would be more than a connection may have pending."""
    assert bodies_read_slowly(start_broker, stored=3, batches=300, turns=300) == 300 * 3


def test_the_last_messages_of_too_many_subjects(start_broker: StartBroker) -> None:
    """One answer has those of 1,024 subjects at most, at the time that was requested."""
    api = Api(start_broker())
    api.make(name="S", subjects=["s.*"], allow_direct=True)
    for number in range(1025):
        api.json(f"s.{number}", b"x")
    direct = "$JS.API.DIRECT.GET.S"
    for request in (b'{"multi_last":["s.*"]}', b'{"multi_last":["s.*"],"up_to_seq":1025}'):
        assert api.ask(direct, request).headers == b"NATS/1.0 413 Too Many Results\r\n\r\n"
    found = api.ask(direct, b'{"multi_last":["s.*"],"up_to_seq":1024}')
    assert b"Nats-Num-Pending: 1023\r\n" in found.headers


def test_memory_streams_end_with_the_broker_and_file_streams_do_not(
    start_broker: StartBroker,
) -> None:
    server = start_broker()
    api = Api(server)
    api.make(name="F", subjects=["f"])
    api.make(name="M", subjects=["m"], storage="memory")
    assert api.json("f", b"file") == {"stream": "F", "seq": 1}
    assert api.json("m", b"memory") == {"stream": "M", "seq": 1}
    server.restart()
    api = Api(server)
    assert api.stored("F", 1) == b"file"
    assert api.json("f", b"file") == {"stream": "F", "seq": 2}
    assert api.ask("m").headers.startswith(b"NATS/1.0 503")
