"""Users and roles on the page: the login, what each role is offered, the end of a login."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from browser.site import Site, Visit
from browser.test_accessibility import RUN

pytestmark = [pytest.mark.browser, pytest.mark.only_ours]

HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
ROLES = ("viewer", "operator", "admin")


@pytest.fixture(scope="module")
def guarded(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console with a user of each role, named like it."""
    folder = tmp_path_factory.mktemp("guarded")
    users = folder / "users"
    users.write_text("".join(f"{role} {role} {HASH}\n" for role in ROLES))
    found = Site(folder, f'[console]\nlisten = "127.0.0.1:0"\nusers_file = "{users}"\n')
    try:
        found.publish("orders", b"1", channels=("billing",))
        yield found
    finally:
        found.close()


def log_in(visit: Visit, user: str, password: str = "right") -> None:
    visit.page.get_by_label("User").fill(user)
    visit.page.get_by_label("Password").fill(password)
    visit.page.get_by_role("button", name="Log in").click()


def test_a_wrong_password_and_a_right_one(browser: Any, guarded: Site) -> None:
    with Visit(browser, guarded, "topics") as visit:
        page = visit.page
        assert page.get_by_label("User").evaluate("(field) => field === document.activeElement")
        log_in(visit, "viewer", "wrong")
        page.get_by_role("alert").get_by_text("Not logged in.").wait_for()
        log_in(visit, "viewer")
        visit.title("Topics")  # the page of the address, not the first one
        visit.sees("orders")
        page.reload()
        visit.sees("orders")
        (cookie,) = visit.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("button", name="Log in").wait_for()
        assert visit.context.cookies() == []


@pytest.mark.parametrize(
    ("role", "offered"),
    [
        ("viewer", []),
        ("operator", ["Pause", "Empty"]),
        ("admin", ["Pause", "Empty", "Delete"]),
    ],
)
def test_what_a_role_is_offered(browser: Any, guarded: Site, role: str, offered: list[str]) -> None:
    with Visit(browser, guarded, "topic?topic=orders") as visit:
        log_in(visit, role)
        visit.page.get_by_role("link", name="billing", exact=True).wait_for()
        buttons = visit.page.get_by_role("main").get_by_role("button").all_inner_texts()
        assert [name for name in ("Pause", "Empty", "Delete") if name in buttons] == offered
        assert visit.page.locator(".side").get_by_text(role, exact=True).count() == 1


def test_a_removed_user_is_logged_out_of_an_open_page(browser: Any, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ann admin {HASH}\nbob viewer {HASH}\n")
    config = f'[console]\nlisten = "127.0.0.1:0"\nusers_file = "{users}"\n'
    site = Site(tmp_path / "site", config)
    try:
        with Visit(browser, site, "topics") as visit:
            log_in(visit, "ann")
            visit.page.get_by_text("Live", exact=True).wait_for()
            users.write_text(f"bob viewer {HASH}\n")
            site.broker.signal(signal.SIGHUP)
            visit.page.get_by_role("button", name="Log in").wait_for()
    finally:
        site.close()


def test_the_login_has_no_serious_findings(browser: Any, guarded: Site, axe: str) -> None:
    with Visit(browser, guarded) as visit:
        visit.page.get_by_role("button", name="Log in").wait_for()
        visit.page.evaluate(axe)
        assert visit.page.evaluate(RUN) == []
