"""Seeds of the parsers: what clients send in the golden transcripts."""

from __future__ import annotations

from pathlib import Path

from support.golden.transcript import expand, read_transcript

WIRE = Path(__file__).parent.parent / "golden"
UNIQ = b"a"
FIRST_ID = b"0000000000000001"


def transcripts(protocol: str, greeting: bytes) -> list[bytes]:
    """All that the first connection of each scenario sends, after `greeting` unless it is raw."""
    found = []
    for path in sorted((WIRE / protocol).glob("*.txt")):
        for scenario in read_transcript(path).scenarios:
            names = {step.text.split()[0]: FIRST_ID for step in scenario.steps if step.kind == "M"}
            names["uniq"] = UNIQ
            data = b"" if scenario.raw else greeting
            for step in scenario.steps:
                if step.kind == "C" and step.conn == 1:
                    data += expand(step.text, names)
            found.append(data)
    return found
