r"""Golden transcripts: a client's input and the original server's answers, as text.

A file is options, then scenarios. Every line says one thing:

    # comment
    option nats.max_payload=64     a server with this setting (whole file)
    == name                        a scenario begins
    raw                            the connections start bare: no magic sent, no INFO skipped
    feed whole                     only these ways of feeding (whole bytes cut joined trailing)
    original whole                 the original passes only this way; Twinwire passes every way
    differs                        intended difference: see docs/reference/differences.md
    once                           depends on the clock: fed whole, not rewritten by the recorder
    C: bytes                       the client sends; C2: is the second connection, C: the first
    S: bytes                       the server answers exactly this
    S~: regex                      one line (NATS) or one frame (NSQ, after its kind) matches
    J: {"field": value}            one JSON answer (INFO, IDENTIFY) has these fields;
                                   "~regex" matches, "*" is anything, "!" is absent
    M: name attempts body          one NSQ message; its id is kept as ${name}; the same name
                                   again must be the same id and timestamp
    T: seconds                     at least this long passed since the client last spoke
    H:                             the client will send nothing more (half close)
    D:                             the client hangs up
    X:                             the server closes, after nothing more
    E:                             nothing more comes (asked with a barrier command)

Bytes are UTF-8 with \r \n \t \\ \xNN and macros: ${uniq} (a name of eight characters, another in
each run), ${u32 N}, ${sized X} (a length, then X), ${repeat N X}, ${response X}, ${error X}
(NSQ frames) and ${name} for the id of an earlier message.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.clients.peer import pack_frame, sized

UNIQ_LENGTH = 8
FEEDS = ("whole", "bytes", "cut", "joined", "trailing")
STEP = re.compile(r"(C|S|S~|J|M|T|H|D|X|E)(\d?):(?: (.*))?", re.DOTALL)
STEP_TILDE = re.compile(r"S(\d?)~:")
ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "\\": b"\\"}


class GoldenError(ValueError):
    """A transcript that cannot be read."""


@dataclass(frozen=True)
class Step:
    """One line of a scenario."""

    kind: str
    conn: int
    text: str
    line: int

    def __str__(self) -> str:
        number = "" if self.conn == 1 else str(self.conn)
        kind = f"S{number}~" if self.kind == "S~" else f"{self.kind}{number}"
        return f"{kind}: {self.text}" if self.text else f"{kind}:"


@dataclass
class Scenario:
    """A named exchange over one or several connections."""

    name: str
    path: Path
    protocol: str
    steps: list[Step] = field(default_factory=list)
    feeds: tuple[str, ...] = FEEDS
    original_feeds: tuple[str, ...] = FEEDS
    raw: bool = False
    once: bool = False
    differs: bool = False

    @property
    def identity(self) -> str:
        return f"{self.protocol}/{self.path.stem}: {self.name}"

    def ways(self, *, original: bool) -> list[str]:
        """How this scenario can be fed."""
        if self.differs and not original:
            return []
        if self.once:
            return ["whole"]
        ways = [f for f in self.feeds if not original or f in self.original_feeds]
        if "trailing" in ways and not self._ends_by_server():
            ways.remove("trailing")
        return ways

    def _ends_by_server(self) -> bool:
        return any(step.kind == "X" for step in self.steps)


@dataclass
class Transcript:
    """One file."""

    path: Path
    options: dict[str, dict[str, object]]
    scenarios: list[Scenario]
    lines: list[str]


def read_transcript(path: Path) -> Transcript:
    """Parse a file; the folder's name is the protocol."""
    transcript = Transcript(path, {}, [], path.read_text().split("\n"))
    names: set[str] = set()
    for number, line in enumerate(transcript.lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            _read_line(transcript, line, number)
        except GoldenError as error:
            raise GoldenError(f"{path.name}:{number}: {error}") from None
    for scenario in transcript.scenarios:
        if scenario.name in names:
            raise GoldenError(f"{path.name}: two scenarios are named {scenario.name!r}")
        names.add(scenario.name)
    return transcript


def _read_line(transcript: Transcript, line: str, number: int) -> None:
    if line.startswith("option "):
        section, _, rest = line.removeprefix("option ").partition(".")
        key, _, value = rest.partition("=")
        plain: object = int(value) if value.lstrip("-").isdigit() else value
        if value in ("true", "false"):
            plain = value == "true"
        transcript.options.setdefault(section, {})[key] = plain
        return
    if line.startswith("== "):
        protocol = transcript.path.parent.name
        transcript.scenarios.append(Scenario(line[3:].strip(), transcript.path, protocol))
        return
    if not transcript.scenarios:
        raise GoldenError("a line before the first scenario")
    scenario = transcript.scenarios[-1]
    if line == "raw":
        scenario.raw = True
    elif line == "differs":
        scenario.differs = True
    elif line == "once":
        scenario.once = True
    elif line.startswith("feed "):
        scenario.feeds = _read_feeds(line)
    elif line.startswith("original "):
        scenario.original_feeds = _read_feeds(line)
    else:
        scenario.steps.append(_read_step(line, number))


def _read_feeds(line: str) -> tuple[str, ...]:
    feeds = tuple(line.split()[1:])
    if not set(feeds) <= set(FEEDS):
        raise GoldenError("unknown way of feeding")
    return feeds


def _read_step(line: str, number: int) -> Step:
    tilde = STEP_TILDE.match(line)
    text = f"S~{tilde[1]}:{line[tilde.end() :]}" if tilde else line
    found = STEP.fullmatch(text)
    if not found:
        raise GoldenError(f"not a step: {line!r}")
    return Step(found[1], int(found[2] or 1), found[3] or "", number)


def expand(text: str, names: Mapping[str, bytes]) -> bytes:
    """The bytes that a line describes."""
    out = bytearray()
    at = 0
    while at < len(text):
        if text.startswith("${", at):
            end = _closing(text, at + 2)
            out += _macro(text[at + 2 : end], names)
            at = end + 1
        elif text[at] == "\\":
            code = text[at + 1]
            if code == "x":
                out.append(int(text[at + 2 : at + 4], 16))
                at += 4
            else:
                out += ESCAPES[code]
                at += 2
        else:
            out += text[at].encode()
            at += 1
    return bytes(out)


def _closing(text: str, at: int) -> int:
    depth = 1
    for index in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise GoldenError(f"no closing brace: {text!r}")


def _macro(text: str, names: Mapping[str, bytes]) -> bytes:
    word, _, rest = text.partition(" ")
    if word in names:
        return names[word]
    if word == "u32":
        return struct.pack(">I", int(rest) & 0xFFFF_FFFF)
    if word == "sized":
        return sized(expand(rest, names))
    if word == "repeat":
        count, _, what = rest.partition(" ")
        return expand(what, names) * int(count)
    if word in ("response", "error"):
        return pack_frame(word, expand(rest, names))
    raise GoldenError(f"unknown macro or name: {text!r}")


def expand_regex(text: str, names: Mapping[str, bytes]) -> re.Pattern[bytes]:
    """A regex with the names filled in; its escapes are the regex language's own."""
    for name, value in names.items():
        text = text.replace(f"${{{name}}}", re.escape(value.decode()))
    return re.compile(text.encode(), re.DOTALL)


def escape(data: bytes, uniq: bytes) -> str:
    """Bytes as a transcript line, the inverse of `expand`."""
    joined: list[str] = []
    runs = list(re.finditer(rb"(.)\1{31,}", data, flags=re.DOTALL))
    at = 0
    for run in runs:
        joined.append(_escape_plain(data[at : run.start()], uniq))
        joined.append(f"${{repeat {run.end() - run.start()} {_escape_plain(run[1], uniq)}}}")
        at = run.end()
    joined.append(_escape_plain(data[at:], uniq))
    text = "".join(joined)
    return text[:-1] + "\\x20" if text.endswith(" ") else text


def _escape_plain(data: bytes, uniq: bytes) -> str:
    named = {value[0]: f"\\{key}" for key, value in ESCAPES.items()}
    out: list[str] = []
    for char in data.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if code in named:
            out.append(named[code])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code < 32 or code == 127:
            out.append(f"\\x{code:02x}")
        else:
            out.append(char)
    return "".join(out).replace(uniq.decode(), "${uniq}")
