"""The system's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAMS = ("chromium", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; skips without Playwright or Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no browser")
    with playwright.sync_playwright() as tools:
        found = tools.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()
