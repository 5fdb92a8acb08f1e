"""axe-core on every page: no serious finding, in light and dark."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
from typing import Any

import pytest
from browser.site import Site, Visit
from browser.test_pages import MESSAGES, PAGES

pytestmark = [pytest.mark.browser, pytest.mark.only_ours]

AXE = "4.14.1"
SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
RUN = """async () => (await axe.run(document, { resultTypes: ['violations'] })).violations
    .filter((one) => ['serious', 'critical'].includes(one.impact))
    .map((one) => one.id + ': ' + one.nodes.map((node) => node.html).join(' | ').slice(0, 400))"""


@pytest.fixture(scope="module")
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
        packed.extract("package/axe.min.js", folder, filter="data")
    return (folder / "package" / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_findings(browser: Any, site: Site, axe: str, scheme: str) -> None:
    found: dict[str, Any] = {}
    with Visit(browser, site, color_scheme=scheme) as visit:
        visit.page.evaluate(axe)
        for path, text in {**PAGES, MESSAGES: "plain text"}.items():
            visit.go(path)
            visit.sees(text)
            if path == MESSAGES:
                visit.press("1")
                visit.page.locator("pre.dump").wait_for()
            if problems := visit.page.evaluate(RUN):
                found[path] = problems
        visit.page.keyboard.press("?")
        visit.page.locator("dialog[open]").wait_for()
        if problems := visit.page.evaluate(RUN):
            found["shortcuts"] = problems
    assert found == {}
