"""A writer of the bulk API: stages blocks, commits them, checks the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from support.clients.bulk import BulkClient
from support.clients.http import Answer
from support.clients.upload import block


class BulkWriter:
    """One writer of one client."""

    def __init__(self, client: BulkClient, name: str) -> None:
        self.client = client
        self.name = name
        self.path = f"tx/{quote(name, safe='')}"

    def post(
        self, epoch: int, topic: str, part: int, attempt: object, data: bytes, offset: int = 0
    ) -> Answer:
        """Upload one block, and return the response."""
        path = f"{self.path}/{epoch}/{quote(topic, safe='')}/{part}/{attempt}"
        return self.client.ask("POST", path, data, offset=offset)

    def stage(
        self, epoch: int, topic: str, part: int, attempt: object, bodies: Iterable[bytes]
    ) -> list[Any]:
        """Stage one block as a new attempt. Returns its entry for a commit."""
        data = block(bodies)
        answer = self.post(epoch, topic, part, attempt, data)
        assert answer.status == 200, answer.body
        return [part, attempt, len(data)]

    def commit(self, epoch: int, topics: dict[str, list[list[Any]]]) -> Answer:
        return self.client.ask("POST", f"{self.path}/{epoch}/commit", {"topics": topics})

    def committed(self, epoch: int, topics: dict[str, list[list[Any]]]) -> Any:
        """Commit, and return the outcome of each topic."""
        answer = self.commit(epoch, topics)
        assert answer.status == 200, answer.body
        return answer.json["topics"]

    def show(self) -> Any:
        return self.client.ask("GET", self.path).json

    def drop(self, epoch: int) -> Answer:
        return self.client.ask("DELETE", f"{self.path}/{epoch}")


def bodies(client: BulkClient, topic: str, end: int) -> list[bytes]:
    """The bodies of all records of a topic below the seq `end`, in order."""
    client.await_next(topic, end)
    found = client.all_of(topic, client.topic(topic)["first"], end)
    return [body for frame in found for body in frame.bodies]


def once(found: Iterable[bytes], expected: Iterable[bytes]) -> None:
    """Assert that each expected body was found exactly once."""
    counts = Counter(found)
    assert counts == Counter(expected)
