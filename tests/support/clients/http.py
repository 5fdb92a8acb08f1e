"""Plain HTTP requests to a server's listeners."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlencode

from support.servers.processes import Address

TIMEOUT_S = 10.0


class Answer(NamedTuple):
    """Status, headers (lower case) and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    address: Address, method: str, path: str, body: bytes | None = None, **query: object
) -> Answer:
    """Send one request on a new connection; `query` is added to the path."""
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    try:
        target = f"{path}?{urlencode(query)}" if query else path
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, target, body)  # refused before all of it was read
        response = connection.getresponse()
        headers = {key.lower(): value for key, value in response.getheaders()}
        return Answer(response.status, headers, response.read())
    finally:
        connection.close()


def nsq_topic(address: Address, topic: str) -> Any:
    """The topic's entry in /stats, or None if there is none."""
    topics = request(address, "GET", "/stats", format="json", topic=topic).json["topics"]
    return topics[0] if topics else None


def nsq_channel(address: Address, topic: str, channel: str) -> Any:
    """The channel's entry in /stats, or None if there is none."""
    entry = nsq_topic(address, topic)
    found = [c for c in (entry or {}).get("channels") or [] if c["channel_name"] == channel]
    return found[0] if found else None
