"""Prints the section of CHANGELOG.md for a release, as the text of its release page.

    python tools/release_notes.py 0.1.0

The exit code is 1 if there is no such section. With --tag the version has a `v` in front, as tags
have, and the section must have the date of the release.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNRELEASED = "unreleased"
REPOSITORY_PATH = re.compile(r"\]\((?!https?:|#)([^)]+)\)")


class NoNotesError(Exception):
    """There are no notes for this release."""


def notes(text: str, version: str, *, released: bool = False) -> str:
    """The section of a version, without its heading. NoNotesError: there is none; `released`: or it
    has no date."""
    match = re.search(
        rf"^## {re.escape(version)}(?: \(([^)]*)\))?$\n(.*?)(?=^## |\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    if match is None:
        raise NoNotesError(f"CHANGELOG.md has no section for {version}")
    if released and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", match[1] or ""):
        raise NoNotesError(f"the section for {version} says {match[1]!r}; expected YYYY-MM-DD")
    if not (found := match[2].strip()):
        raise NoNotesError(f"the section for {version} is empty")
    return found + "\n"


def with_links(text: str, base: str) -> str:
    """Links to files of the repository as addresses below `base`: a release page has no files."""
    return REPOSITORY_PATH.sub(lambda match: f"]({base.rstrip('/')}/{match[1]})", text)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="such as 0.1.0")
    parser.add_argument("--tag", action="store_true", help="the version is a tag, such as v0.1.0")
    parser.add_argument("--links", metavar="URL", help="where the repository's files are")
    options = parser.parse_args()
    version = options.version.removeprefix("v") if options.tag else options.version
    text = (ROOT / "CHANGELOG.md").read_text()
    try:
        found = notes(text, version, released=options.tag)
    except NoNotesError as problem:
        print(problem, file=sys.stderr)
        return 1
    print(with_links(found, options.links) if options.links else found, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
