"""Raw JetStream requests, sent alike to Twinwire and to nats-server, and what may differ.

A script is a list of steps: a verb with its body, or `=SUBJECT` with a message to publish.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

WAIT_S = 10.0
QUIET_S = 0.4
# Requests that no server answers, here.
QUIET = {
    "NOPE",
    "STREAM.INFO",
    "CONSUMER.RESET.S.none",
    "CONSUMER.DURABLE.CREATE.S",
    "META.LEADER.STEPDOWN",
    "SERVER.REMOVE",
    "ACCOUNT.PURGE.X",
}
TIMES = re.compile(r'"\d{4}-\d\d-\d\dT[\d:.]+Z"')
UPLOADS = re.compile(r"(\$JS\.SNAPSHOT\.RESTORE\.\w+)\.\w{22}")
ZERO = '"0001-01-01T00:00:00Z"'
MASKED = {
    "_nats.level": "LEVEL",
    "_nats.ver": "VERSION",
    "level": "LEVEL",
    "leader": "SERVER",
    "server": "SERVER",
}
SILENCE, NOBODY = "no answer", "no responders"


@dataclass(frozen=True)
class Step:
    """One request: a verb of the API, or a subject to publish to."""

    verb: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return self.verb[1:] if self.verb.startswith("=") else f"$JS.API.{self.verb}"


def step(verb: str, body: object = b"", **headers: str) -> Step:
    """A step; a body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Step(verb, data, {name.replace("_", "-"): value for name, value in headers.items()})


def masked(text: str) -> Any:
    """The answer without what differs between two servers and two runs."""
    text = TIMES.sub(lambda found: found[0] if found[0] == ZERO else '"TIME"', text)
    text = UPLOADS.sub(r"\1.ID", text)
    try:
        value = json.loads(text, object_pairs_hook=list)
    except ValueError:
        return text
    return _mask(value)


def _mask(value: Any) -> Any:
    if isinstance(value, list):
        return [_masked_pair(*each) if isinstance(each, tuple) else _mask(each) for each in value]
    return value


def _masked_pair(key: str, value: Any) -> tuple[str, Any]:
    inner = MASKED.get(key, _mask(value))
    if key == "sources" and all("lag" in dict(source) for source in inner):
        inner.sort(key=repr)  # the states of sources come in any order from nats-server
    return key, inner


async def ask(client: Client, one: Step) -> str:
    """The answer to a step as text."""
    wait_s = QUIET_S if one.verb in QUIET else WAIT_S
    try:
        message = await client.request(
            one.subject, one.body, timeout=wait_s, headers=one.headers or None
        )
    except nats.errors.NoRespondersError:
        return NOBODY
    except (nats.errors.TimeoutError, TimeoutError):
        return SILENCE
    return message.data.decode()


async def run(url: str, steps: list[Step]) -> list[str]:
    """The answers to all steps, in order."""
    client = await nats.connect(url, connect_timeout=5, allow_reconnect=False)
    try:
        return [await ask(client, each) for each in steps]
    finally:
        await client.close()
