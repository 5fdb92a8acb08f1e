"""The documentation: links, paths, make targets and examples of configurations are valid."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.config.load import ConfigError, load

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOURCE = re.compile(r"`((?:broker|tests|benchmarks|conf|docs|tools)/[\w./-]+)`")
NOT_SOURCE = {"broker/spark/jobs/NAME.py"}
IMAGE_BYTES_MAX = 80_000


def anchors(page: Path) -> set[str]:
    """The names of the headings, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    wrong = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            wrong.append(link)
    assert not wrong


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [
        str(page) for page in pages if str(page) != "README.md" and str(page) not in index
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_and_make_targets_exist(page: Path) -> None:
    text = page.read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    named = set(SOURCE.findall(CODE.sub("", text))) - NOT_SOURCE
    ends = ("", ".py", ".pyx")
    assert [
        path for path in named if not any((ROOT / f"{path}{end}").exists() for end in ends)
    ] == []


def test_man_pages_are_current() -> None:
    """They are written by tools/man_pages.py from the help texts."""
    ended = subprocess.run(
        [sys.executable, "tools/man_pages.py", "--check"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_configurations_are_valid(page: Path, tmp_path: Path) -> None:
    """Only files that an example names, such as certificates, may be missing."""
    for example in TOML.findall(page.read_text()):
        file = tmp_path / "example.toml"
        file.write_text(example)
        try:
            load(file, {}, {})
        except ConfigError as error:
            pytest.fail(f"{error}\n{example}")


def test_results_are_the_summary_of_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    summary = importlib.import_module("summary")
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text() == summary.text_of(summary.PAGES)


def test_images_are_small_shown_and_made_by_a_command() -> None:
    """`make images` takes them; see tools/console_images.py."""
    texts = [page.read_text() for page in PAGES]
    tool = (ROOT / "tools" / "console_images.py").read_text()
    named = set(re.findall(r'^    "(\w+)": Image\(', tool, re.MULTILINE))
    images = sorted((ROOT / "docs").rglob("*.png"))
    assert {image.stem for image in images} == {f"console-{name}" for name in named}
    for image in images:
        assert image.stat().st_size <= IMAGE_BYTES_MAX, image
        assert any(f"images/{image.name}" in text for text in texts), image
