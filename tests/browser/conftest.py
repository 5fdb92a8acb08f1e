"""Fixtures of the browser tests: one browser, one broker with traffic for what changes nothing, the
source of axe-core."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from browser.site import Site
from support.browser import chromium

AXE = "4.14.1"
SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="


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


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core; skips without npm or a registry."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "pack", "--silent", f"axe-core@{AXE}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip("axe-core cannot be had")
    archive = folder / f"axe-core-{AXE}.tgz"
    digest = hashlib.sha512(archive.read_bytes()).digest()
    assert base64.b64encode(digest).decode() == SHA512
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has none
        packed.extract("package/axe.min.js", folder)
    return (folder / "package" / "axe.min.js").read_text()
