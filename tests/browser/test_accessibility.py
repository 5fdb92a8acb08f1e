"""axe-core on every page: no serious finding, in light and dark."""

from __future__ import annotations

from typing import Any

import pytest
from browser.site import Site, Visit
from browser.test_pages import MESSAGES, PAGES

pytestmark = [pytest.mark.browser, pytest.mark.only_ours]

RUN = """async () => (await axe.run(document, { resultTypes: ['violations'] })).violations
    .filter((one) => ['serious', 'critical'].includes(one.impact))
    .map((one) => one.id + ': ' + one.nodes.map((node) => node.html).join(' | ').slice(0, 400))"""


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
