"""Fixtures of the browser tests: one browser, one broker with traffic for what changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser.site import Site
from support.browser import chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("site"))
    try:
        found.traffic()
        yield found
    finally:
        found.close()
