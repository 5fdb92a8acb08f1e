"""`make fuzz` for each target, with fresh seeds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from campaign import report

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "tests" / "fuzz" / "__main__.py"
DONE = re.compile(r"(\d+) inputs in ([\d.]+) s .* (\d+) failed")


def targets() -> list[str]:
    """Their names, as the fuzzer's table has them."""
    table = MAIN.read_text().partition("TARGETS = {")[2].partition("}")[0]
    return re.findall(r'^    "(\w+)":', table, re.MULTILINE)


def run(seed: int, minutes: float, kept: Path) -> report.Row:
    """The part: its time in equal shares."""
    names = targets()
    seconds = int(60 * minutes / len(names))
    findings, results = list[str](), list[str]()
    for number, name in enumerate(names):
        arguments = f"--keep --target {name} --seed {seed + number}"
        command = ["make", "fuzz-targets", f"FUZZ_SECONDS={seconds}", f"FUZZ_ARGS={arguments}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        match = DONE.search(done.stdout)
        inputs = f"{name} {match[1]}" if match else name
        results.append(inputs)
        if done.returncode or match is None:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            findings.append(f'make fuzz FUZZ_SECONDS={seconds} FUZZ_ARGS="{arguments}"\n{last}')
        print(f"fuzz: {inputs} inputs, exit code {done.returncode}", flush=True)
    return report.Row(
        "fuzz",
        f"{seconds / 60:.3g} min of fuzzing for each of {len(names)} targets, on a build with the"
        " address sanitizer",
        f"inputs: {', '.join(results)}: {len(findings)} findings",
        f"make campaign PARTS=fuzz MINUTES={minutes:g} SEED={seed}",
        findings,
    )
