"""Play a golden scenario against a server, with the client's bytes cut in different ways."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace

from support.clients.peer import NSQ_MAGIC, Frame, PeerError, RawPeer
from support.golden.transcript import Scenario, Step, expand, expand_regex
from support.servers.processes import Server

BYTEWISE_MAX = 3000  # longer sends are cut in pieces instead, to stay quick
CUT_PIECES = 12
ONCE_DEADLINE_S = 20.0
BARRIER = "BARRIER"
NATS_TRAILING = b"PING\r\nPUB x 1\r\ny\r\n"
NSQ_TRAILING = b"NOP\nSUB x y\nNOP\n"
DEPENDENT = re.compile(r"\$\{(\w+)\}")


class ReplayError(AssertionError):
    """The server departed from the transcript."""


class Player:
    """One run of one scenario."""

    def __init__(
        self, scenario: Scenario, server: Server, uniq: bytes, feed: str = "whole"
    ) -> None:
        self.scenario = scenario
        self.server = server
        self.feed = feed
        self.names: dict[str, bytes] = {"uniq": uniq}
        self.stamps: dict[str, int] = {}
        self.peers: dict[int, RawPeer] = {}
        self.spoke_at = time.monotonic()
        self.random = random.Random(f"{scenario.identity} {feed}")
        self._plays: dict[str, Callable[[Step], None]] = {
            "C": self._client,
            "H": self._half_close,
            "D": self._hang_up,
            "T": self._at_least,
            "S": lambda s: self.peer(s.conn).expect(expand(s.text, self.names)),
            "S~": self._matching,
            "J": self._json,
            "M": self._message,
            "X": lambda s: self.peer(s.conn).expect_close(),
            "E": self._nothing_more,
        }

    def run(self) -> None:
        """Every step in order; an error names the line of the transcript."""
        steps = self.scenario.steps
        if self.feed == "joined":
            steps = joined(steps)
        if self.feed == "trailing":
            steps = self._with_trailing(steps)
        try:
            for step in steps:
                self.play(step)
        finally:
            for peer in self.peers.values():
                peer.close()

    def play(self, step: Step) -> None:
        try:
            self._plays[step.kind](step)
        except PeerError as error:
            where = f"{self.scenario.path.name}:{step.line}"
            raise ReplayError(f"{where} ({self.feed}) {step}\n{error}") from None

    def peer(self, number: int) -> RawPeer:
        """The connection of that number, opened and greeted at first use."""
        if number not in self.peers:
            nats = self.scenario.protocol == "nats"
            peer = RawPeer(self.server.nats if nats else self.server.nsq)
            peer.skips_pings = nats and not self.scenario.once
            if self.scenario.once:
                peer.deadline_s = ONCE_DEADLINE_S
            self.peers[number] = peer
            if not self.scenario.raw:
                if nats:
                    peer.read_until(b"\r\n")
                else:
                    peer.send(NSQ_MAGIC)
        return self.peers[number]

    def _client(self, step: Step) -> None:
        peer = self.peer(step.conn)
        data = expand(step.text, self.names)
        self.spoke_at = time.monotonic()  # before sending: what follows cannot be earlier
        for piece in self._pieces(data):
            peer.send(piece)

    def _pieces(self, data: bytes) -> list[bytes]:
        if self.feed == "bytes" and len(data) <= BYTEWISE_MAX:
            return [data[i : i + 1] for i in range(len(data))]
        if self.feed in ("bytes", "cut") and len(data) > 1:
            count = min(CUT_PIECES, len(data) - 1)
            cuts = sorted(self.random.sample(range(1, len(data)), count))
            return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        return [data]

    def _with_trailing(self, steps: list[Step]) -> list[Step]:
        junk = NATS_TRAILING if self.scenario.protocol == "nats" else NSQ_TRAILING
        text = "".join(f"\\x{byte:02x}" for byte in junk)
        out = list(steps)
        for end in [s for s in steps if s.kind == "X"]:
            sends = [i for i, s in enumerate(out) if s.kind == "C" and s.conn == end.conn]
            if sends and not any(s.kind == "H" and s.conn == end.conn for s in steps):
                out[sends[-1]] = replace(out[sends[-1]], text=out[sends[-1]].text + text)
        return out

    def _half_close(self, step: Step) -> None:
        self.spoke_at = time.monotonic()
        self.peer(step.conn).half_close()

    def _hang_up(self, step: Step) -> None:
        self.spoke_at = time.monotonic()
        self.peer(step.conn).close()

    def _at_least(self, step: Step) -> None:
        passed = time.monotonic() - self.spoke_at
        if passed < float(step.text):
            raise PeerError(f"only {passed:.3f} s had passed")

    def read_unit(self, conn: int) -> bytes:
        """One line or one frame, the frame as `kind payload`."""
        peer = self.peer(conn)
        if self.scenario.protocol == "nats":
            return peer.read_line()
        frame = peer.read_frame()
        return frame.kind.encode() + b" " + frame.payload

    def _matching(self, step: Step) -> None:
        unit = self.read_unit(step.conn)
        if not expand_regex(step.text, self.names).fullmatch(unit):
            raise PeerError(f"no match: {unit!r}")

    def _json(self, step: Step) -> None:
        unit = self.read_unit(step.conn)
        match_json(step.text, unit)

    def _message(self, step: Step) -> None:
        frame = self.peer(step.conn).read_frame()
        self.match_message(step, frame)

    def match_message(self, step: Step, frame: Frame) -> None:
        name, attempts, body = step.text.split(" ", 2)
        if frame.kind != "message":
            raise PeerError(f"not a message: {frame}")
        want = (int(attempts), expand(body, self.names))
        if (frame.attempts, frame.body) != want:
            raise PeerError(f"expected attempts and body {want}, got {frame}")
        if not re.fullmatch(rb"[0-9a-f]{16}", frame.message_id):
            raise PeerError(f"not a message id: {frame.message_id!r}")
        known = self.names.setdefault(name, frame.message_id)
        stamp = self.stamps.setdefault(name, frame.timestamp_ns)
        if known != frame.message_id or stamp != frame.timestamp_ns:
            raise PeerError(f"id or timestamp changed: {frame}")

    def _nothing_more(self, step: Step) -> None:
        peer = self.peer(step.conn)
        if self.scenario.protocol == "nats":
            peer.ping()
            return
        peer.command(BARRIER)
        peer.expect_frame("error", f"E_INVALID invalid command {BARRIER}".encode())
        peer.expect_close()


def joined(steps: list[Step]) -> list[Step]:
    """Consecutive sends of one connection made one, so each is followed by the next one's bytes."""
    out: list[Step] = []
    last: int | None = None
    for step in steps:
        same = last is not None and step.kind == "C" and out[last].conn == step.conn
        if same and set(DEPENDENT.findall(step.text)) <= {"uniq"}:
            assert last is not None
            out[last] = replace(out[last], text=out[last].text + step.text)
            continue
        if step.kind == "C":
            last = len(out)
        elif step.kind not in ("S", "S~", "J"):
            last = None
        out.append(step)
    return out


def match_json(text: str, unit: bytes) -> None:
    """The named fields of a JSON answer; see the rules in `golden`."""
    prefix, _, rest = unit.partition(b" ")
    if prefix not in (b"INFO", b"response") or (prefix == b"INFO" and not rest.endswith(b" \r\n")):
        raise PeerError(f"not a JSON answer: {unit!r}")
    got = json.loads(rest)
    for key, want in json.loads(text).items():
        value = got.get(key)
        if want == "!":
            good = key not in got
        elif want == "*":
            good = key in got
        elif isinstance(want, str) and want.startswith("~"):
            good = isinstance(value, str) and re.fullmatch(want[1:], value) is not None
        else:
            good = type(value) is type(want) and value == want
        if not good:
            raise PeerError(f"field {key}: expected {want!r}, got {value!r} in {got}")


__all__ = ["Player", "ReplayError", "joined", "match_json"]
