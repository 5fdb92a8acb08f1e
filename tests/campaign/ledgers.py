"""Ledgers: the answers of a broker, recorded by its clients, and checks that they were true.

A ledger knows each message of a topic by the number in its body. A check raises a `Finding` at the
first violation. The ledgers are complete: they contain each message.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PADDING = b"abcdefghijklmnopqrstuvwxyz0123456789"
EARLY_NS = 5_000_000  # tolerance, because both sides read a clock
END = b"end"  # the beginning of an audit's own message, which is the last one


class Finding(AssertionError):  # noqa: N818 - of the broker, not of this program
    """A guarantee that was violated, or a broker that did what it must not."""


def body_of(number: int) -> bytes:
    """The body of a message; its length differs from message to message."""
    size = (number * 7919) % 149
    return b"%d:%s" % (number, (PADDING * 5)[:size])


def number_of(body: bytes) -> int:
    """The number of a message. Finding if this body was never sent."""
    head, _, _ = body.partition(b":")
    if not head.isdigit() or body_of(int(head)) != body:
        raise Finding(f"a body that was never published: {body!r}")
    return int(head)


@dataclass(slots=True)
class Message:
    """One message of a topic and its known state."""

    acked: bool = False  # the publish was answered
    refused: bool = False  # with an error
    due_ns: int = 0
    seq: int = 0


@dataclass(slots=True)
class Delivery:
    """The deliveries of one message by a channel."""

    attempts: int = 0  # of a delivery that is known to be in the journal
    early_seq: int = 0  # of a delivery before the publish was answered
    finish_sent: bool = False
    finished: bool = False  # an answer on that connection came after the FIN


@dataclass
class TopicLedger:
    """All messages published to one topic."""

    name: str
    sent: int = 0
    floor: int = 0  # messages below it are completed and removed
    messages: dict[int, Message] = field(default_factory=dict)
    number_by_seq: dict[int, int] = field(default_factory=dict)
    channels: dict[str, ChannelLedger] = field(default_factory=dict)
    acked: int = 0
    refused: int = 0

    def channel(self, name: str) -> ChannelLedger:
        """The ledger of a channel."""
        if name not in self.channels:
            self.channels[name] = ChannelLedger(self, name)
        return self.channels[name]

    def take(self, count: int = 1, due_ns: int = 0) -> range:
        """Numbers for messages that are about to be sent."""
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        for number in numbers:
            self.messages[number] = Message(due_ns=due_ns)
        return numbers

    def answered(self, numbers: range, *, refused: bool = False) -> None:
        """Note that the publish of these messages was answered."""
        for number in numbers:
            message = self.messages[number]
            message.acked, message.refused = not refused, refused
        if refused:
            self.refused += len(numbers)
        else:
            self.acked += len(numbers)

    def seen(self, seq: int, body: bytes, *, delivered: bool = False) -> int:
        """Check a record from any source; returns its number. A seq always has the same content,
        and a message has one seq.

        One that is `delivered` before its publish is answered may still be refused, when the sync
        fails; a commit that is sent again then gives the message another seq.
        """
        number = number_of(body)
        if number >= self.sent:
            raise Finding(f"{self.name}: message {number} was never sent (seq {seq})")
        before = self.number_by_seq.setdefault(seq, number)
        if before != number:
            raise Finding(f"{self.name}: seq {seq} was message {before} and is message {number}")
        if number < self.floor:
            return number
        message = self.messages[number]
        if delivered and not message.acked:
            return number
        if message.seq not in (0, seq):
            raise Finding(f"{self.name}: message {number} has seqs {message.seq} and {seq}")
        message.seq = seq
        return number

    def retire(self) -> None:
        """Every channel was empty: no message sent so far may be delivered again."""
        self.floor = self.sent
        self.messages.clear()
        self.number_by_seq.clear()
        for channel in self.channels.values():
            channel.deliveries.clear()

    def expect_stored(self, present: set[int]) -> None:
        """These numbers are in the files: no other message may be missing there."""
        owed = {
            number
            for number, message in self.messages.items()
            if message.acked
            and (
                not self.channels
                or any(
                    not c.deliveries[number].finish_sent if number in c.deliveries else True
                    for c in self.channels.values()
                )
            )
        }
        if lost := owed - present:
            raise Finding(f"{self.name}: {len(lost)} acknowledged messages lost: {some(lost)}")


@dataclass
class ChannelLedger:
    """Messages that the consumers of one channel received and finished."""

    topic: TopicLedger
    name: str
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    finished: int = 0
    delivered: int = 0

    def got(self, seq: int, body: bytes, attempts: int, now_ns: int) -> int:
        """Check a delivery; returns the number of the message."""
        number = self.topic.seen(seq, body, delivered=True)
        where = f"{self.topic.name}/{self.name}: message {number} (seq {seq})"
        if number < self.topic.floor:
            raise Finding(f"{where} was delivered again after the channel had been empty")
        delivery = self.deliveries.setdefault(number, Delivery())
        if delivery.early_seq not in (0, seq):  # the log has refused that record since then
            delivery = self.deliveries[number] = Delivery()
        if not self.topic.messages[number].acked:
            delivery.early_seq = seq
        self.delivered += 1
        if delivery.finished:
            raise Finding(f"{where} was delivered again after an answer had followed its FIN")
        if attempts <= delivery.attempts:
            raise Finding(f"{where}: attempts went from {delivery.attempts} to {attempts}")
        due_ns = self.topic.messages[number].due_ns
        if now_ns < due_ns - EARLY_NS:
            raise Finding(f"{where} came {(due_ns - now_ns) / 1e6:.0f} ms before its time")
        return number

    def finish_sent(self, number: int) -> None:
        """Note that a FIN was sent."""
        self.deliveries[number].finish_sent = True

    def confirm(self, finished: list[int], attempts: dict[int, int]) -> None:
        """An answer arrived on the connection after these FINs and deliveries."""
        for number, count in attempts.items():
            delivery = self.deliveries[number]
            delivery.attempts = max(delivery.attempts, count)
        for number in finished:
            if not self.deliveries[number].finished:
                self.deliveries[number].finished = True
                self.finished += 1

    def expect_empty(self) -> None:
        """The broker reports an empty channel: every acknowledged message was finished."""
        owed = [
            number
            for number, message in self.topic.messages.items()
            if message.acked
            and not (number in self.deliveries and self.deliveries[number].finish_sent)
        ]
        if owed:
            raise Finding(
                f"{self.topic.name}/{self.name}: {len(owed)} acknowledged messages"
                f" were never delivered: {some(owed)}"
            )


@dataclass
class StreamLedger:
    """A channel of NATS Streaming: its messages, and what a durable has acknowledged."""

    topic: TopicLedger
    fenced: set[int] = field(default_factory=set)  # acks that the broker has certainly processed
    redeliveries: dict[int, int] = field(default_factory=dict)  # of the last delivery
    noted: dict[int, int] = field(default_factory=dict)  # of one certainly in the journal
    taken: int = 0  # acks of messages that were removed
    floor: int = 0  # sequences up to it were seen by an audit

    def got(self, message: dict[str, object]) -> int:
        """Check a delivery to the durable; returns its sequence."""
        sequence, body = message["sequence"], message["data"]
        count = message["redelivery_count"]
        assert isinstance(sequence, int)
        assert isinstance(body, bytes)
        assert isinstance(count, int)
        if not body.startswith(END):
            self.topic.seen(sequence, body)
        where = f"{self.topic.name}: sequence {sequence}"
        if sequence in self.fenced:
            raise Finding(f"{where} was delivered again after an answer had followed its ack")
        before = self.noted.get(sequence)
        if before is not None and count <= before:
            raise Finding(f"{where}: the count of redeliveries went from {before} to {count}")
        if bool(message["redelivered"]) != (count > 0):
            raise Finding(f"{where}: redelivered is {message['redelivered']} with count {count}")
        self.redeliveries[sequence] = count
        return sequence

    def retire(self) -> None:
        """The durable has received every message."""
        self.topic.retire()
        self.taken += len(self.fenced)
        self.floor = max(self.redeliveries, default=self.floor)
        self.noted.clear()
        self.redeliveries.clear()
        self.fenced.clear()

    def confirm(self, acked: list[int], counts: dict[int, int]) -> None:
        """An answer arrived on the connection after these acks and deliveries."""
        self.fenced.update(acked)
        for sequence, count in counts.items():
            self.noted[sequence] = max(count, self.noted.get(sequence, 0))


@dataclass
class CommitLedger:
    """The rows that one writer has committed to some topics: each once, no refused ones."""

    topics: list[TopicLedger]
    epoch: int = 0
    committed: int = 0
    rows: dict[str, range] = field(default_factory=dict)  # of the current epoch

    def begin(self, counts: list[int]) -> None:
        """Take the rows for the next epoch."""
        self.epoch += 1
        self.rows = {
            topic.name: topic.take(count) for topic, count in zip(self.topics, counts, strict=True)
        }

    def done(self) -> None:
        """Note that the commit of the epoch was answered."""
        for topic in self.topics:
            topic.answered(self.rows[topic.name])
        self.rows = {}
        self.committed += 1


def some(numbers: list[int] | set[int]) -> str:
    """A few numbers for a message."""
    found = sorted(numbers)
    return ", ".join(map(str, found[:8])) + (" ..." if len(found) > 8 else "")
