"""Writes the manual pages of the commands from their help texts.

    python tools/man_pages.py               write docs/man/*.1
    python tools/man_pages.py --check       exit with 1 if a page is not current

One page for `twinwire`, one for each command; the commands of a group are sections of its page.
Servers with the flags of an original have the text of their -h.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import click

from broker import __version__
from broker.cli.commands import Commands, Passthrough, main
from broker.cli.servers import SERVERS, run_server

FOLDER = ROOT / "docs" / "man"
HOST = "HOSTNAME"  # the name of this host is a default of some flags


def roff(text: str) -> str:
    """A text as roff shows it unchanged."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text."""
    for part in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        yield ".PP"
        yield roff(" ".join(part.split()))


def title(name: str, short: str) -> Iterator[str]:
    """The head of a page."""
    yield f'.TH "{name.upper()}" "1" "" "Twinwire {__version__}" "Twinwire Manual"'
    yield ".SH NAME"
    yield roff(f"{name} - {short.rstrip('.')}")


def context(command: click.Command, name: str) -> click.Context:
    """A context in which a command has the help of the real one."""
    return click.Context(command, info_name=name, **main.context_settings)


def options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """The options of a command."""
    found = [each for each in command.get_params(ctx) if isinstance(each, click.Option)]
    for name, text in filter(None, (each.get_help_record(ctx) for each in found)):
        yield ".TP"
        yield f".B {roff(name)}"
        yield roff(" ".join(text.split()))


def described(command: click.Command, name: str, level: str) -> Iterator[str]:
    """Usage, description and options; `level`: the macro of a heading."""
    ctx = context(command, name)
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield from (f"{level} SYNOPSIS", f".B {roff(name)}", roff(usage))
    yield f"{level} DESCRIPTION"
    yield from paragraphs(command.help or "")
    yield f"{level} OPTIONS"
    yield from options(command, ctx)


def subcommands(group: click.Group, name: str) -> Iterator[str]:
    """A section for each command of a group."""
    ctx = context(group, name)
    for each in group.list_commands(ctx):
        command = group.get_command(ctx, each)
        assert command is not None
        yield f".SH {roff(f'{name} {each}').upper()}"
        if isinstance(command, click.Group):
            yield from paragraphs(command.help or "")
            inner = context(command, f"{name} {each}")
            for one in command.list_commands(inner):
                leaf = command.get_command(inner, one)
                assert leaf is not None
                yield f".SS {roff(f'{name} {each} {one}')}"
                yield from paragraphs(leaf.help or "")
                yield from options(leaf, context(leaf, one))
        else:
            yield from paragraphs(command.help or "")
            yield from options(command, context(command, each))


def original(name: str, short: str) -> Iterator[str]:
    """The page of a server with the flags of an original."""
    out, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch("socket.gethostname", return_value=HOST),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        contextlib.suppress(SystemExit),
    ):
        run_server(name, ["-h"])
    yield from title(f"twinwire-{name}", short)
    yield from (".SH SYNOPSIS", f".B twinwire {roff(name)}", "[FLAGS]", ".SH DESCRIPTION", ".nf")
    yield roff((out.getvalue() + errors.getvalue()).expandtabs(4).rstrip())
    yield ".fi"


def overview() -> Iterator[str]:
    """The page of the program."""
    yield from title("twinwire", (main.help or "").splitlines()[0])
    yield from (".SH SYNOPSIS", ".B twinwire", roff("[OPTIONS] COMMAND [ARGS]..."))
    yield ".SH DESCRIPTION"
    yield from paragraphs(main.help or "")
    for heading, names in Commands.groups.items():
        yield f".SH {roff(heading).upper()}"
        for name in names:
            yield from (".TP", f".BR twinwire\\-{roff(name)} (1)", roff(Commands.known[name][1]))
    yield ".SH OPTIONS"
    yield from options(main, context(main, "twinwire"))


def pages() -> dict[str, str]:
    """Text by file name."""
    ctx = context(main, "twinwire")
    found = {"twinwire.1": overview()}
    for name in main.list_commands(ctx):
        command = main.get_command(ctx, name)
        short = Commands.known[name][1]
        if isinstance(command, Passthrough) and name in SERVERS:
            lines = original(name, short)
        else:
            assert command is not None
            lines = page(command, name, short)
        found[f"twinwire-{name}.1"] = lines
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


def page(command: click.Command, name: str, short: str) -> Iterator[str]:
    """The page of a command or a group."""
    yield from title(f"twinwire-{name}", short)
    yield from described(command, f"twinwire {name}", ".SH")
    if isinstance(command, click.Group):
        yield from subcommands(command, f"twinwire {name}")
    yield from (".SH SEE ALSO", ".BR twinwire (1)")


def stale() -> list[str]:
    """Names of pages that are not current, missing or left over."""
    made = pages()
    there = {path.name: path.read_text() for path in FOLDER.glob("*.1")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        wrong = stale()
        for name in wrong:
            print(f"{name} is not current: run tools/man_pages.py")
        sys.exit(1 if wrong else 0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in FOLDER.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
        (FOLDER / name).chmod(0o644)  # the servers, whose help was read, make files private
