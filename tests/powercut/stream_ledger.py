"""The answers that JetStream clients got: what must exist after a power cut, and what must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KEYS = 7  # subjects of a stream that keeps the last message of each


def subject_of(stream: str, number: int) -> str:
    """The subject of a message; those of one stream have few."""
    return f"{stream}.{number % KEYS}"


@dataclass
class ConsumerLedger:
    """One consumer."""

    may_be: list[bool] = field(default_factory=lambda: [False])  # whether it exists
    paused: list[bool] = field(default_factory=lambda: [False])
    acking: set[int] = field(default_factory=set)  # seqs whose ack was sent
    acked: set[int] = field(default_factory=set)  # and confirmed


@dataclass
class StreamLedger:
    """One stream."""

    # What its configuration may be: the last one answered, and what was asked for since. None = it
    # does not exist.
    may_be: list[dict[str, Any] | None] = field(default_factory=lambda: [None])
    most: int = 0  # the least limit of messages that it ever had
    asked: set[int] = field(default_factory=set)  # numbers of messages
    stored: dict[int, int] = field(default_factory=dict)  # number -> seq, answered
    going: set[int] = field(default_factory=set)  # seqs whose deletion was asked for
    gone: set[int] = field(default_factory=set)  # and answered
    batches: list[list[int]] = field(default_factory=list)  # numbers
    consumers: dict[str, ConsumerLedger] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """The newest configuration that was asked for."""
        return next(found for found in reversed(self.may_be) if found is not None)

    def take(self, mark: dict[str, Any]) -> None:
        """Apply one line of the ledger."""
        event = mark["e"].removeprefix("js-")
        match event:
            case "make-ask" | "set-ask":
                self.may_be.append(mark["config"])
                most = mark["config"].get("max_msgs", 0)
                self.most = min(self.most, most) if self.most and most else self.most or most
            case "gone-ask":
                self.may_be.append(None)
            case "made" | "set":
                del self.may_be[:-1]
            case "gone":
                self.__init__()  # type: ignore[misc]
            case "ask":
                self.asked |= set(mark["n"])
            case "ok":
                self.stored[mark["n"]] = mark["seq"]
            case "batch-ask":
                self.asked |= set(mark["n"])
                self.batches.append(mark["n"])
            case "batch":
                first = mark["seq"] - len(mark["n"]) + 1
                self.stored.update((n, first + at) for at, n in enumerate(mark["n"]))
            case "del-ask":
                self.going |= set(mark["seqs"])
            case "del":
                self.gone |= set(mark["seqs"])
            case _:
                self._take_consumer(event, mark)

    def _take_consumer(self, event: str, mark: dict[str, Any]) -> None:
        consumer = self.consumers.setdefault(mark["c"], ConsumerLedger())
        match event:
            case "con-ask":
                consumer.may_be.append(True)
            case "con-gone-ask":
                consumer.may_be.append(False)
            case "con":
                del consumer.may_be[:-1]
            case "con-gone":
                self.consumers[mark["c"]] = ConsumerLedger()
            case "pause-ask":
                consumer.paused.append(mark["paused"])
            case "pause":
                del consumer.paused[:-1]
            case "ack-ask":
                consumer.acking |= set(mark["seqs"])
            case "ack":
                consumer.acked |= set(mark["seqs"])
            case _:
                raise ValueError(event)

    def required(self, name: str) -> dict[int, int]:
        """Messages that must not be lost: number -> seq."""
        found = {n: seq for n, seq in self.stored.items() if seq not in self.going}
        config, most = self.config, self.most
        if most > 0:
            last = max(self.stored.values(), default=0) + len(self.asked - set(self.stored))
            found = {n: seq for n, seq in found.items() if seq > last - most}
        if config.get("max_msgs_per_subject", 0) == 1:
            found = self._last_of_each_key(name, found)
        return found

    def is_replaced(self, name: str, number: int, batch: list[int], there: dict[int, int]) -> bool:
        """Whether a message of a batch, of which some are there, may be missing because a later one
        of its key is there."""
        other = next(n for n in batch if n in there)
        seq = there[other] + batch.index(number) - batch.index(other)
        return self.config.get("max_msgs_per_subject", 0) == 1 and any(
            subject_of(name, n) == subject_of(name, number) and after > seq
            for n, after in there.items()
        )

    def _last_of_each_key(self, name: str, found: dict[int, int]) -> dict[int, int]:
        open_keys = {subject_of(name, n) for n in self.asked - set(self.stored)}
        last: dict[str, int] = {}
        for number, seq in self.stored.items():
            key = subject_of(name, number)
            last[key] = max(seq, last.get(key, 0))
        return {
            n: seq
            for n, seq in found.items()
            if seq == last[subject_of(name, n)] and subject_of(name, n) not in open_keys
        }
