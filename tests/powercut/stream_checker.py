"""Compare the streams of a started broker with what their clients were answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from broker.protocols.jetstream.service import JetStreamService
from broker.protocols.nats.accounts.asking import Question, ask, inbox
from broker.server.server import Server
from powercut.bodies import LANE, body_of, number_of
from powercut.stream_ledger import ConsumerLedger, StreamLedger, subject_of
from powercut.stream_work import API, id_headers, seq_of

WAIT_S = 20.0
EXPIRES_NS = 200_000_000
AGAIN = 3  # messages that are published once more
ACKED = 3  # messages acked here
PAGE = 1 << 20


class StreamChecker:
    """Checks all streams; `wrong(text)` is called for each problem."""

    def __init__(
        self,
        server: Server,
        streams: dict[str, StreamLedger],
        stage: int,
        mark: Callable[..., None],
        wrong: Callable[[str], None],
    ) -> None:
        service = server.service(JetStreamService)
        assert service is not None
        assert service.jetstream is not None
        self.account = service.jetstream.accounts["$G"]
        self.streams = streams
        self.stage = stage
        self.mark = mark
        self.wrong = wrong

    async def run(self) -> None:
        for name, ledger in self.streams.items():
            await self.look(name, ledger)
        for name, reason in self.account.offline.items():
            self.wrong(f"stream {name} is offline: {reason}")
        for name in set(self.account.streams) - set(self.streams):
            self.wrong(f"stream {name} was never asked for")

    async def send(self, subject: str, data: bytes, headers: bytes = b"") -> Any:
        """The answer as JSON."""
        found = await ask(self.account.account, Question(subject.encode(), data, headers), WAIT_S)
        return {"error": "none came"} if found is None else json.loads(found)

    async def look(self, name: str, ledger: StreamLedger) -> None:
        stream = self.account.streams.get(name)
        if stream is None:
            if None not in ledger.may_be:
                self.wrong(f"the stream {name} is gone")
            return
        shown = json.loads(json.dumps(_shown(stream.config)))
        wanted = [config for config in ledger.may_be if config is not None]
        if not wanted:
            self.wrong(f"the stream {name} is back")
            return
        if not any(
            all(shown[key] == value for key, value in one.items() if key in shown) for one in wanted
        ):
            self.wrong(f"stream {name}: none of its configurations: {shown}")
        if "mirror" in wanted[-1]:
            await self.look_at_mirror(name, stream, wanted[-1]["mirror"]["name"])
            return
        there = self.look_at_messages(name, ledger, stream)
        for durable, consumer in ledger.consumers.items():
            await self.look_at_consumer(name, durable, consumer, ledger, there)
        await self.publish_again(name, ledger)
        await self.publish_on(name)

    def look_at_messages(self, name: str, ledger: StreamLedger, stream: Any) -> set[int]:
        """Compare the messages; their seqs."""
        messages, _ = stream.lookup.page("", 1, limit=PAGE)
        there: dict[int, int] = {}
        for seq, _, subject, _, body in messages:
            number = number_of(name, body)
            if number is None or number not in ledger.asked:
                self.wrong(f"stream {name}: {seq} was never published: {body[:40]!r}")
                continue
            if subject.decode() != subject_of(name, number):
                self.wrong(f"stream {name}: {seq} has another subject: {subject!r}")
            if number in there:
                self.wrong(f"stream {name}: {number} is there twice")
            if ledger.stored.get(number, seq) != seq:
                self.wrong(f"stream {name}: {number} was {ledger.stored[number]}, is {seq}")
            there[number] = seq
        missing = sorted(set(ledger.required(name)) - set(there))
        if missing:
            self.wrong(f"stream {name}: {len(missing)} messages are lost: {missing[:6]}")
        back = sorted(ledger.gone & set(there.values()))
        if back:
            self.wrong(f"stream {name}: deleted and back: {back[:6]}")
        if ledger.config.get("max_msgs_per_subject", 0) == 1:
            self.look_at_keys(name, ledger, there)
        for batch in ledger.batches:
            seqs = {ledger.stored[n] for n in batch if n in ledger.stored}
            found = there.keys() & set(batch)
            if not seqs & ledger.going and not all(
                n in found or ledger.is_replaced(name, n, batch, there) for n in batch if found
            ):
                self.wrong(f"stream {name}: a part of the batch of {batch[0]}")
        last = max(ledger.stored.values(), default=0)
        if stream.store.last_seq < last:
            self.wrong(f"stream {name}: ends at {stream.store.last_seq}, {last} was answered")
        return set(there.values())

    def look_at_keys(self, name: str, ledger: StreamLedger, there: dict[int, int]) -> None:
        """Each key has its last message, or one that replaces it."""
        last: dict[str, int] = {}
        for number, seq in ledger.stored.items():
            key = subject_of(name, number)
            last[key] = max(seq, last.get(key, 0))
        for number, seq in there.items():
            if seq >= last.get(subject_of(name, number), 0):
                last.pop(subject_of(name, number), None)
        if last:
            self.wrong(f"stream {name}: nothing is left of {sorted(last)[:6]}")

    async def look_at_mirror(self, name: str, stream: Any, origin: str) -> None:
        """It gets each message that its origin has, with its sequence."""
        source = self.account.streams.get(origin)
        if source is None:
            return
        messages, _ = source.lookup.page("", 1, limit=PAGE)
        deadline = asyncio.get_running_loop().time() + WAIT_S
        for seq, _, subject, _, body in messages:
            while (found := stream.store.message(seq)) is None:
                if stream.store.lost_bytes and seq < stream.store.last_seq:
                    break  # its own damage, which is reported, is not mended
                if asyncio.get_running_loop().time() > deadline:
                    self.wrong(f"the mirror {name} does not get {seq} of {origin}")
                    return
                await asyncio.sleep(0.001)
            if found is not None and (found[2], found[4]) != (subject, body):
                self.wrong(f"the mirror {name} has another message {seq} than {origin}")
                return

    # --- consumers

    async def look_at_consumer(
        self,
        name: str,
        durable: str,
        known: ConsumerLedger,
        ledger: StreamLedger,
        there: set[int],
    ) -> None:
        consumer = self.account.streams[name].consumers.get(durable)
        if consumer is None:
            if False not in known.may_be:
                self.wrong(f"the consumer {durable} of {name} is gone")
            return
        if True not in known.may_be:
            self.wrong(f"the consumer {durable} of {name} is back")
            return
        paused = consumer.info().paused
        if paused not in known.paused:
            self.wrong(f"consumer {durable} of {name}: paused is {paused}")
        if paused:
            return
        owed = set(ledger.required(name).values()) & there - known.acking
        got = await self.fetch(name, durable, owed)
        if owed - set(got):
            self.wrong(
                f"consumer {durable} of {name}: not delivered: {sorted(owed - set(got))[:6]}"
            )
        again = sorted(known.acked & set(got))
        if again:
            self.wrong(f"consumer {durable} of {name}: acked and delivered: {again[:6]}")
        removes = ledger.config.get("retention") == "workqueue"
        for seq in sorted(owed & set(got))[:ACKED]:
            self.mark("js-ack-ask", s=name, c=durable, seqs=[seq])
            known.acking.add(seq)
            if removes:
                self.mark("js-del-ask", s=name, seqs=[seq])
            found = await ask(self.account.account, Question(got[seq], b"+ACK"), WAIT_S)
            if found is None:
                self.wrong(f"consumer {durable} of {name}: the ack of {seq} is not confirmed")
                continue
            self.mark("js-ack", s=name, c=durable, seqs=[seq])
            if removes:
                self.mark("js-del", s=name, seqs=[seq])

    async def fetch(self, name: str, durable: str, owed: set[int]) -> dict[int, bytes]:
        """Pull until all of these were delivered, or too much time has passed: seq -> reply."""
        got: dict[int, bytes] = {}
        ended = asyncio.Event()

        def take(message: Any) -> None:
            if message.reply:
                got[seq_of(message.reply.decode())] = message.reply
            if not message.reply or (owed and owed <= got.keys()):
                ended.set()  # a status, or all that is owed: others come again and again

        subject, reply = f"{API}CONSUMER.MSG.NEXT.{name}.{durable}".encode(), inbox()
        subscription = self.account.account.listen(reply, take)
        # what was delivered before the cut comes again when its time is up
        tries = 1 + int(WAIT_S * 1e9 / EXPIRES_NS)
        try:
            for _ in range(tries):
                ended.clear()
                body = json.dumps({"batch": 500, "expires": EXPIRES_NS} if got.keys() < owed
                                  else {"batch": 500, "no_wait": True}).encode()  # fmt: skip
                self.account.account.publish(subject, body, reply)
                async with asyncio.timeout(WAIT_S):
                    await ended.wait()
                if owed <= got.keys():
                    break
        finally:
            subscription.close()
        return got

    # --- going on

    async def publish_again(self, name: str, ledger: StreamLedger) -> None:
        """A publisher that does not know whether it was answered publishes again."""
        alive = ledger.required(name)
        batches = {n for batch in ledger.batches for n in batch}
        again = [n for n in sorted(alive, key=alive.__getitem__) if n not in batches][-AGAIN:]
        for number in again:
            headers = id_headers(name, number)
            answer = await self.send(subject_of(name, number), body_of(name, number), headers)
            if not answer.get("duplicate") or answer.get("seq") != alive[number]:
                self.wrong(f"stream {name}: {number} published again: {answer}")

    async def publish_on(self, name: str) -> None:
        first = (8 + self.stage) * LANE
        before = self.account.streams[name].store.last_seq
        for number in range(first, first + 4):
            self.mark("js-ask", s=name, n=[number])
            headers = id_headers(name, number)
            answer = await self.send(subject_of(name, number), body_of(name, number), headers)
            # not the next one after a cut: others may have been seen of what was not answered
            if answer.get("seq", 0) <= before:
                self.wrong(f"stream {name}: {number} follows {before}: {answer}")
                return
            before = answer["seq"]
            self.mark("js-ok", s=name, n=number, seq=answer["seq"])


def _shown(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in (
        "name", "subjects", "storage", "max_msgs", "max_msgs_per_subject", "retention",
        "description", "allow_atomic", "allow_rollup_hdrs", "duplicate_window",
    )}  # fmt: skip
