"""Writes the server's side of golden transcripts from what nats-server and nsqd really send.

    python tools/record/transcripts.py [--write] [FILE ...]

Each client line (C, H, D) of a scenario is played to the original; what comes back until it falls
silent is compared with the S, M, X and E lines that follow, and with --write replaces them.
Handwritten S~, J and T lines stay where they match. Scenarios marked `once` depend on the clock:
they are only replayed. Read the diff before you believe it: a recording is not a specification.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support import Originals, PeerError, Server
from support.clients.peer import Frame, RawPeer, pack_frame
from support.golden.replay import BARRIER, Player, ReplayError
from support.golden.transcript import Scenario, Step, Transcript, escape, read_transcript

SILENCE_S = {"nats": 0.12, "nsq": 0.3}
CLIENT = ("C", "H", "D")
PIECE_S = 0.01
REPEATED_MIN = 8
HANDWRITTEN = ("S~", "J")
PAYLOAD_LINE = re.compile(rb"H?MSG .* (\d+)\r\n", re.DOTALL)


class Recorder:
    """Plays one scenario and writes down the answers."""

    def __init__(self, scenario: Scenario, server: Server, uniq: bytes) -> None:
        self.player = Player(scenario, server, uniq)
        self.scenario = scenario
        self.uniq = uniq
        self.out: list[tuple[int, str]] = []  # after which source line, text
        self.ended: set[int] = set()
        self.messages = 0

    def run(self) -> list[tuple[int, str]]:
        """Lines to write, each with the number of the client line it follows."""
        steps = self.scenario.steps
        turns = [i for i, s in enumerate(steps) if s.kind in CLIENT]
        first = turns[0] if turns else len(steps)
        try:
            for step in steps[:first]:  # a greeting, before the client says anything
                self.player.play(step)
                self._write(step.line - 1, step)
            for turn, following in zip(turns, [*turns[1:], len(steps)], strict=True):
                step = steps[turn]
                self.player.play(step)
                if step.kind == "D":
                    self.ended.add(step.conn)
                self._answers(step.line, steps[turn + 1 : following])
            if turns:
                self._barriers(steps)
        finally:
            for peer in self.player.peers.values():
                peer.close()
        return _compressed(self.out)

    def _answers(self, line: int, expected: list[Step]) -> None:
        self._until_silent()
        handwritten = [s for s in expected if s.kind in HANDWRITTEN]
        messages = [s for s in expected if s.kind == "M"]
        for conn, peer in sorted(self.player.peers.items()):
            if conn in self.ended:
                continue
            while peer.pending:
                self._unit(conn, line, handwritten, messages)
            if peer.closed:
                self.ended.add(conn)
                self._write(line, Step("X", conn, "", 0))

    def _until_silent(self) -> None:
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < SILENCE_S[self.scenario.protocol]:
            for conn, peer in self.player.peers.items():
                if conn not in self.ended and peer.receive(PIECE_S):
                    quiet_since = time.monotonic()

    def _unit(self, conn: int, line: int, hand: list[Step], messages: list[Step]) -> None:
        peer = self.player.peer(conn)
        before = bytes(peer.pending)
        peer.deadline_s = 1.0
        for step in hand:
            if step.conn == conn:
                try:
                    self.player.play(step)
                except ReplayError:
                    peer.pending = bytearray(before)
                    break
                hand.remove(step)
                self._write(line, step)
                return
        if self.scenario.protocol == "nats":
            self._write(line, Step("S", conn, escape(_nats_unit(peer), self.uniq), 0))
        else:
            self._write(line, self._nsq_unit(conn, messages))

    def _nsq_unit(self, conn: int, messages: list[Step]) -> Step:
        frame = self.player.peer(conn).read_frame()
        if frame.kind == "message":
            return self._nsq_message(conn, frame, messages)
        text = escape(frame.payload, self.uniq)
        for name, value in self.player.names.items():
            if name != "uniq":
                text = text.replace(value.decode(), f"${{{name}}}")
        return Step("S", conn, f"${{{frame.kind} {text}}}", 0)

    def _nsq_message(self, conn: int, frame: Frame, messages: list[Step]) -> Step:
        body = escape(frame.body, self.uniq)
        names = [n for n, v in self.player.names.items() if v == frame.message_id]
        for step in messages:
            name, _, old = step.text.split(" ", 2)
            if step.conn == conn and old == body and name not in self.player.names:
                names = [name]
        if not names:
            self.messages += 1
            names = [f"m{self.messages}"]
        name = names[0]
        step = Step("M", conn, f"{name} {frame.attempts} {body}", 0)
        self.player.match_message(step, frame)
        return step

    def _barriers(self, steps: list[Step]) -> None:
        """E for every open connection that a barrier command proves silent."""
        last = max(s.line for s in steps if s.kind in CLIENT)
        for conn, peer in sorted(self.player.peers.items()):
            if conn in self.ended:
                continue
            nats = self.scenario.protocol == "nats"
            peer.deadline_s = 0.5
            peer.send(b"PING\r\n" if nats else BARRIER.encode() + b"\n")
            answer = pack_frame("error", f"E_INVALID invalid command {BARRIER}".encode())
            try:
                peer.expect(b"PONG\r\n" if nats else answer)
            except PeerError:
                continue
            self._write(last, Step("E", conn, "", 0))

    def _write(self, line: int, step: Step) -> None:
        self.out.append((line, str(step)))


def _compressed(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Long runs of the same answer as one line."""
    out: list[tuple[int, str]] = []
    for (line, text), group in itertools.groupby(lines):
        count = len(list(group))
        kind, _, answer = text.partition(" ")
        if count < REPEATED_MIN:
            out += [(line, text)] * count
        else:
            out.append((line, f"{kind} ${{repeat {count} {answer}}}"))
    return out


def _nats_unit(peer: RawPeer) -> bytes:
    if b"\n" not in peer.pending:
        return peer.read_exact(len(peer.pending))
    head = peer.read_line()
    found = PAYLOAD_LINE.fullmatch(head)
    return head + peer.read_exact(int(found[1]) + 2) if found else head


def _rewrite(transcript: Transcript, recorded: dict[str, list[tuple[int, str]]]) -> list[str]:
    """The file's lines with the recorded answers in place of the old ones."""
    drop: set[int] = set()
    add: dict[int, list[str]] = {}
    for scenario in transcript.scenarios:
        if scenario.name not in recorded:
            continue
        drop |= {s.line for s in scenario.steps if s.kind not in (*CLIENT, "T")}
        for line, text in recorded[scenario.name]:
            add.setdefault(line, []).append(text)
    lines: list[str] = []
    for number, old in enumerate(transcript.lines, 1):
        if number not in drop:
            lines.append(old)
        lines += add.get(number, [])
    return lines


def _record_file(path: Path, write: bool, folder: Path) -> bool:
    transcript = read_transcript(path)
    server = Originals(folder / path.stem, transcript.options).start()
    recorded: dict[str, list[tuple[int, str]]] = {}
    good = True
    try:
        for number, scenario in enumerate(transcript.scenarios):
            uniq = f"rec{number:05d}".encode()
            if not scenario.once:
                recorded[scenario.name] = Recorder(scenario, server, uniq).run()
                continue
            try:
                Player(scenario, server, uniq).run()
            except ReplayError as error:
                print(f"{path.name}: {scenario.name}: {error}")
                good = False
    finally:
        server.close()
    lines = _rewrite(transcript, recorded)
    if lines != transcript.lines:
        print(f"{path.parent.name}/{path.name} differs from what the original says")
        good = write
        if write:
            path.write_text("\n".join(lines))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="rewrite the files")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if missing := Originals.missing():
        print(f"not on PATH: {', '.join(missing)}")
        return 2
    files = options.files or sorted(
        (Path(__file__).parents[2] / "tests" / "golden").glob("n*/*.txt")
    )
    with tempfile.TemporaryDirectory() as folder:
        results = [_record_file(p.resolve(), options.write, Path(folder)) for p in files]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
