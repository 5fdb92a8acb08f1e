"""`twinwire completion`: its script works in a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli.commands import main

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = f"#!{sys.executable}\nfrom broker.cli import entry\nentry()\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["twinwire", "serv"], {"serve"}),
        (["twinwire", "serve", "--nsq"], {"--nsq", "--nsq-http"}),
        (["twinwire", "pipeline", "re"], {"replay"}),
        (["twinwire", "completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(tmp_path: Path, words: list[str], found: set[str]) -> None:
    program = tmp_path / "twinwire"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    script = (
        'eval "$(twinwire completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        ' _twinwire_completion twinwire; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        ["bash", "-c", script, "bash", *words], capture_output=True, text=True, env=env, check=True
    )
    assert set(ended.stdout.split()) == found
    assert ended.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_TWINWIRE_COMPLETE={shell}_complete" in result.output
