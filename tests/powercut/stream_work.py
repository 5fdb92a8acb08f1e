"""The work of JetStream clients in the recordings, with a ledger of their answers."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterable
from typing import Any, Self

from powercut.bodies import body_of, number_of
from powercut.recording import Recording
from powercut.stream_ledger import subject_of

INBOX = "_INBOX.powercut"
WAIT_S = 20.0
FOR_EVER = "2200-01-01T00:00:00Z"
API = "$JS.API."
FAST_EVERY = 10  # messages of a fast batch for each answer
ACK_WAIT_NS = 20_000_000  # messages come again soon, so that a check need not wait
WINDOW_NS = 86_400_000_000_000  # longer than states of one recording are looked at
_MESSAGE = re.compile(rb"H?MSG (\S+) \S+ (?:(\S+) )??(?:(\d+) )?(\d+)\r\n")


class Js:
    """One connection to a recorded broker."""

    def __init__(self, rec: Recording) -> None:
        self.rec = rec
        self.socket = socket.create_connection(rec.ports["nats"], WAIT_S)
        self.received = self.socket.makefile("rb")
        options = b'{"verbose":false,"headers":true,"no_responders":true,"protocol":1}'
        self.socket.sendall(b"CONNECT %s\r\nSUB %s.> 1\r\nPING\r\n" % (options, INBOX.encode()))
        self.asked = 0
        self.stored: dict[str, dict[int, int]] = {}  # of each stream: number -> seq

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.received.close()
        self.socket.close()

    # --- the protocol

    def send(self, subject: str, data: bytes, headers: bytes = b"") -> str:
        """Publish with a reply subject, which is returned."""
        self.asked += 1
        reply = f"{INBOX}.{self.asked}"
        self.publish(subject, data, headers, reply)
        return reply

    def publish(self, subject: str, data: bytes, headers: bytes, reply: str) -> None:
        if headers:
            sizes = b"%d %d" % (len(headers), len(headers) + len(data))
            line = b"HPUB %s %s %s\r\n" % (subject.encode(), reply.encode(), sizes)
        else:
            line = b"PUB %s %s %d\r\n" % (subject.encode(), reply.encode(), len(data))
        self.socket.sendall(line + headers + data + b"\r\n")

    def message(self) -> tuple[str, str, bytes, bytes]:
        """The next message: subject, reply, headers, body."""
        while True:
            line = self.received.readline()
            if not line:
                raise EOFError
            if line == b"PING\r\n":
                self.socket.sendall(b"PONG\r\n")
            if not line.startswith((b"MSG ", b"HMSG ")):
                assert not line.startswith(b"-ERR"), line
                continue
            found = _MESSAGE.fullmatch(line)
            assert found, line
            subject, reply, head, size = found.groups()
            if line.startswith(b"MSG ") and head is not None:
                reply, head = head, None  # a reply that is all digits is none of ours
            data = self.received.read(int(size) + 2)[:-2]
            cut = int(head or 0)
            return subject.decode(), (reply or b"").decode(), data[:cut], data[cut:]

    def request(self, subject: str, data: bytes = b"", headers: bytes = b"") -> Any:
        """The answer as JSON."""
        reply = self.send(subject, data, headers)
        subject, _, _, body = self.message()
        assert subject == reply, (subject, reply)
        found = json.loads(body)
        assert "error" not in found, found
        return found

    def api(self, verb: str, body: object = None) -> Any:
        return self.request(API + verb, b"" if body is None else json.dumps(body).encode())

    # --- streams

    def make(self, name: str, **more: Any) -> None:
        common = {"subjects": [f"{name}.>"], "storage": "file", "duplicate_window": WINDOW_NS}
        config = {"name": name, **common, **more}
        self.rec.mark("js-make-ask", s=name, config=config)
        self.api(f"STREAM.CREATE.{name}", config)
        self.rec.mark("js-made", s=name)

    def make_mirror(self, name: str, origin: str) -> None:
        config = {"name": name, "storage": "file", "mirror": {"name": origin}}
        self.rec.mark("js-make-ask", s=name, config=config)
        self.api(f"STREAM.CREATE.{name}", config)
        self.rec.mark("js-made", s=name)

    def configure(self, name: str, config: dict[str, Any], **more: Any) -> None:
        config = {**config, **more}
        self.rec.mark("js-set-ask", s=name, config=config)
        self.api(f"STREAM.UPDATE.{name}", config)
        self.rec.mark("js-set", s=name)

    def drop(self, name: str) -> None:
        self.rec.mark("js-gone-ask", s=name)
        self.api(f"STREAM.DELETE.{name}")
        self.rec.mark("js-gone", s=name)

    def put(self, name: str, numbers: Iterable[int], window: int = 32) -> None:
        """Publish messages with IDs and a window of unanswered ones."""
        left, waiting = list(numbers), {}
        stored = self.stored.setdefault(name, {})
        while left or waiting:
            if len(waiting) <= window // 2 and left:
                fresh, left = left[: window - len(waiting)], left[window - len(waiting) :]
                self.rec.mark("js-ask", s=name, n=fresh)
                for n in fresh:
                    headers = id_headers(name, n)
                    waiting[self.send(subject_of(name, n), body_of(name, n), headers)] = n
            subject, _, _, body = self.message()
            answer, number = json.loads(body), waiting.pop(subject)
            assert "error" not in answer, answer
            self.rec.mark("js-ok", s=name, n=number, seq=answer["seq"])
            stored[number] = answer["seq"]

    def put_batch(self, name: str, numbers: list[int]) -> None:
        """Publish an atomic batch."""
        self.rec.mark("js-batch-ask", s=name, n=numbers)
        last = len(numbers)
        for at, n in enumerate(numbers, 1):
            lines = f"NATS/1.0\r\nNats-Batch-Id: b{numbers[0]}\r\nNats-Batch-Sequence: {at}\r\n"
            commit = "Nats-Batch-Commit: 1\r\n" if at == last else ""
            headers = f"{lines}{commit}\r\n".encode()
            reply = self.send(subject_of(name, n), body_of(name, n), headers)
        while True:
            subject, _, _, body = self.message()
            if subject == reply:
                break
            assert not body, body  # a flow answer
        answer = json.loads(body)
        assert answer.get("count") == last, answer
        self.rec.mark("js-batch", s=name, n=numbers, seq=answer["seq"])
        first = answer["seq"] - last + 1
        self.stored.setdefault(name, {}).update((n, first + at) for at, n in enumerate(numbers))

    def put_fast(self, name: str, numbers: list[int]) -> None:
        """Publish a fast batch: each answer says up to which message all is stored."""
        before = self.api(f"STREAM.INFO.{name}")["state"]["last_seq"]
        self.rec.mark("js-ask", s=name, n=numbers)
        stored = self.stored.setdefault(name, {})
        batch, last, done = f"f{numbers[0]}", len(numbers), 0
        for at, n in enumerate(numbers, 1):
            op = 2 if at == last else int(at > 1)
            reply = f"{INBOX}.{batch}.{FAST_EVERY}.fail.{at}.{op}.$FI"
            self.publish(subject_of(name, n), body_of(name, n), id_headers(name, n), reply)
        while done < last:
            answer = json.loads(self.message()[3])
            assert "error" not in answer, answer
            upto = answer["count"] if "batch" in answer else answer["seq"]
            for at in range(done, upto):
                self.rec.mark("js-ok", s=name, n=numbers[at], seq=before + at + 1)
                stored[numbers[at]] = before + at + 1
            done = max(done, upto) if "batch" in answer else min(upto, last - 1)

    def delete(self, name: str, seqs: Iterable[int], *, erase: bool) -> None:
        for seq in seqs:
            self.rec.mark("js-del-ask", s=name, seqs=[seq])
            self.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq, "no_erase": not erase})
            self.rec.mark("js-del", s=name, seqs=[seq])

    def purge(self, name: str, **asked: Any) -> None:
        """Purge while nothing is being published, what this connection has published."""
        seqs = [
            seq
            for n, seq in self.stored[name].items()
            if asked.get("filter", subject_of(name, n)) == subject_of(name, n)
            and seq < asked.get("seq", seq + 1)
        ]
        self.rec.mark("js-del-ask", s=name, seqs=seqs)
        self.api(f"STREAM.PURGE.{name}", asked)
        self.rec.mark("js-del", s=name, seqs=seqs)

    # --- consumers

    def consumer(self, name: str, durable: str, **more: Any) -> None:
        config = {
            "durable_name": durable,
            "ack_policy": "explicit",
            "ack_wait": ACK_WAIT_NS,
            **more,
        }
        self.rec.mark("js-con-ask", s=name, c=durable)
        self.api(
            f"CONSUMER.CREATE.{name}.{durable}",
            {"stream_name": name, "config": config, "action": "create"},
        )
        self.rec.mark("js-con", s=name, c=durable)

    def drop_consumer(self, name: str, durable: str) -> None:
        self.rec.mark("js-con-gone-ask", s=name, c=durable)
        self.api(f"CONSUMER.DELETE.{name}.{durable}")
        self.rec.mark("js-con-gone", s=name, c=durable)

    def pause(self, name: str, durable: str, *, paused: bool) -> None:
        self.rec.mark("js-pause-ask", s=name, c=durable, paused=paused)
        until = FOR_EVER if paused else "0001-01-01T00:00:00Z"
        self.api(f"CONSUMER.PAUSE.{name}.{durable}", {"pause_until": until})
        self.rec.mark("js-pause", s=name, c=durable)

    def consume(
        self, name: str, durable: str, count: int, *, every: int = 1, removes: bool = False
    ) -> None:
        """Fetch so many messages and wait for the confirmation of each ack; `every`: each of them
        is not acked. `removes`: an acked message is deleted."""
        request = json.dumps({"batch": count, "expires": 5_000_000_000}).encode()
        self.send(f"{API}CONSUMER.MSG.NEXT.{name}.{durable}", request)
        replies: dict[str, int] = {}
        for _ in range(count):
            _, reply, _, body = self.message()
            assert number_of(name, body) is not None, body
            replies[reply] = seq_of(reply)
        for at, (reply, seq) in enumerate(replies.items()):
            if every != 1 and at % every == 0:
                continue
            self.rec.mark("js-ack-ask", s=name, c=durable, seqs=[seq])
            if removes:
                self.rec.mark("js-del-ask", s=name, seqs=[seq])
            wanted = self.send(reply, b"+ACK")
            while True:  # messages may come again meanwhile
                subject, _, _, _ = self.message()
                if subject == wanted:
                    break
            self.rec.mark("js-ack", s=name, c=durable, seqs=[seq])
            if removes:
                self.rec.mark("js-del", s=name, seqs=[seq])


def id_headers(name: str, number: int) -> bytes:
    """The header by which a message that is published again is recognized."""
    return f"NATS/1.0\r\nNats-Msg-Id: {name}-{number}\r\n\r\n".encode()


def seq_of(reply: str) -> int:
    """The stream's seq in the reply subject of a delivered message."""
    return int(reply.split(".")[-4])


# --- workloads


def js_streams(rec: Recording) -> None:
    """Streams with limits, deletions, purges, batches; a clean stop, a kill, a deleted stream."""
    rec.begin()
    rec.start()
    with Js(rec) as js:
        js.make("plain", allow_atomic=True, allow_batched=True)
        js.make("keys", max_msgs_per_subject=1, allow_rollup_hdrs=True, allow_atomic=True)
        js.make("few", max_msgs=40)
        js.make_mirror("copy", "plain")
        js.put("plain", range(60))
        js.put("plain", range(60, 70), window=1)
        js.put_batch("plain", list(range(80, 90)))
        for first in range(0, 200, 50):
            js.put("keys", range(first, first + 50))
            js.put_batch("keys", list(range(1000 + first, 1010 + first)))
            js.put("few", range(first, first + 50))
        js.delete("plain", (3, 5, 60), erase=True)
        js.delete("plain", (7, 70), erase=False)
        js.purge("plain", filter=subject_of("plain", 1))
        js.purge("plain", seq=20)
        config = {"name": "few", "subjects": ["few.>"], "storage": "file", "max_msgs": 50}
        js.configure("few", config, description="more", duplicate_window=WINDOW_NS)
        js.put("few", range(300, 330))
    rec.stop()
    rec.start()
    with Js(rec) as js:
        js.make("again")
        js.put("again", range(20))
        js.drop("again")
        js.make("again", max_msgs=30)
        js.put("again", range(100, 115))
        js.put_batch("plain", list(range(100, 130)))
        js.put("plain", range(200, 260))
        js.put_fast("plain", list(range(400, 480)))
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    with Js(rec) as js:
        js.put("plain", range(300, 330))
        js.put("keys", range(300, 330), window=2)
        for first in range(2000, 2050, 10):
            js.put_batch("keys", list(range(first, first + 5)))
        js.drop("again")
    rec.stop()


def js_consumers(rec: Recording) -> None:
    """Consumers whose acks are confirmed, paused and deleted ones, work queues, interest."""
    rec.begin()
    rec.start()
    with Js(rec) as js:
        js.make("work", retention="workqueue")
        js.consumer("work", "worker")
        js.put("work", range(60))
        js.make("log")
        js.put("log", range(40))
        js.consumer("log", "one")
        js.consumer("log", "two")
        js.consume("work", "worker", 30, every=7, removes=True)
        js.consume("log", "one", 30, every=4)
        js.pause("log", "two", paused=True)
        js.consumer("log", "gone")
        js.drop_consumer("log", "gone")
        js.put("log", range(50, 90))
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    with Js(rec) as js:
        js.pause("log", "two", paused=False)
        js.consume("log", "one", 20)
        js.consume("work", "worker", 10, removes=True)
        js.consumer("log", "gone")
        js.put("work", range(100, 110), window=1)
    rec.stop()
    rec.start()
    with Js(rec) as js:
        js.consume("log", "two", 40, every=3)
        js.pause("log", "one", paused=True)
    rec.stop()


WORKLOADS = {"js-streams": js_streams, "js-consumers": js_consumers}
