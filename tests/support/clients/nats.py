"""A NATS client for tests: one blocking socket, messages read one at a time."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from support.clients.peer import RawPeer
from support.servers.processes import Address


class Message(NamedTuple):
    """A message of MSG or HMSG."""

    subject: str
    sid: str
    reply: str
    headers: bytes
    data: bytes

    @property
    def info(self) -> dict[str, Any]:
        """The server's information about the requester: the value of Nats-Request-Info."""
        line = self.headers.partition(b"\r\nNats-Request-Info: ")[2].partition(b"\r\n")[0]
        found: dict[str, Any] = json.loads(line)
        return found


class NatsClient(RawPeer):
    """A client that has sent CONNECT, not verbose. Its sids are numbers."""

    def __init__(self, address: Address, user: str = "", **options: object) -> None:
        super().__init__(address, skips_pings=True)
        self.info: dict[str, Any] = json.loads(self.read_line()[5:])
        self.count = 0
        asked = {"verbose": False, "headers": True, "protocol": 0, **options}
        if user:
            asked |= {"user": user, "pass": user}
        self.send(f"CONNECT {json.dumps(asked)}\r\n".encode())
        self.ping()

    def sub(self, subject: str, queue: str = "") -> str:
        """Subscribe, and wait until the server has processed it. Returns the sid."""
        self.count += 1
        self.send(f"SUB {subject} {queue} {self.count}\r\n".encode())
        self.ping()
        return str(self.count)

    def unsub(self, sid: str, after: int | None = None) -> None:
        self.send(f"UNSUB {sid}{'' if after is None else f' {after}'}\r\n".encode())
        self.ping()

    def pub(self, subject: str, data: bytes = b"", reply: str = "", headers: bytes = b"") -> None:
        """Publish without waiting."""
        sizes = f"{len(headers)} {len(headers) + len(data)}" if headers else f"{len(data)}"
        line = f"{'H' if headers else ''}PUB {subject} {reply} {sizes}\r\n"
        self.send(line.encode() + headers + data + b"\r\n")

    def message(self) -> Message:
        """The next message."""
        line = self.read_line()
        parts = line.decode().split()
        assert parts[0] in {"MSG", "HMSG"}, line
        with_headers = parts[0] == "HMSG"
        size = int(parts[-1])
        cut = int(parts[-2]) if with_headers else 0
        reply = parts[3] if len(parts) == (6 if with_headers else 5) else ""
        body = self.read_exact(size + 2)[:size]
        return Message(parts[1], parts[2], reply, body[:cut], body[cut:])

    def got(self) -> tuple[str, bytes]:
        """Subject and data of the next message."""
        message = self.message()
        return message.subject, message.data

    def nothing(self) -> None:
        """Expect that no message has arrived."""
        self.ping()
