"""Command lines of benchmarks: those that compare in rounds, and those with one size."""

from __future__ import annotations

import argparse


def parser_of(doc: str | None, ours: str, fields: str = "") -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks. `fields`: the fields of --ours-cmd."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    filled = f"; {fields} are filled in" if fields else ""
    parser.add_argument("--ours-cmd", default=ours, help=f"command to compare instead{filled}")
    parser.add_argument("--data-root", help="where data folders are made; default: TMPDIR")
    return parser


def add_rounds(parser: argparse.ArgumentParser, rounds: int, seconds: float) -> None:
    """Options of a comparison in rounds; see `rounds_of`."""
    parser.add_argument("--rounds", type=int, default=0, help=f"default {rounds}")
    parser.add_argument("--seconds", type=float, default=0.0, help=f"per run, default {seconds:g}")
    parser.add_argument("--quick", action="store_true", help="a first look: few, short rounds")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")


def add_against(parser: argparse.ArgumentParser) -> None:
    """The option to compare with an earlier build instead of the original."""
    parser.add_argument(
        "--against",
        default="",
        metavar="COMMAND",
        help="compare with this command, for example an earlier build, instead of the originals",
    )


def rounds_of(
    parser: argparse.ArgumentParser, full: tuple[int, float], quick: tuple[int, float]
) -> argparse.Namespace:
    """The options, with the rounds and seconds of a full or a quick comparison."""
    options = parser.parse_args()
    rounds, seconds = quick if options.quick else full
    options.rounds = options.rounds or rounds
    options.seconds = options.seconds or seconds
    partial = options.rounds < full[0] or options.rows or getattr(options, "against", "")
    if options.write and partial:
        parser.error(f"--write takes every row and at least {full[0]} rounds")
    return options


def size_of(
    parser: argparse.ArgumentParser, kinds: tuple[str, ...], quick: str
) -> argparse.Namespace:
    """The options of a benchmark with one size, of which --quick takes a twentieth."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--only", default="", choices=["", *kinds])
    chosen = parser.parse_args()
    if chosen.write and (chosen.quick or chosen.only):
        parser.error("--write takes everything in full size")
    return chosen
