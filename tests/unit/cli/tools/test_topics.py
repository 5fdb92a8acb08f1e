"""Errors that tools print while they try again."""

from __future__ import annotations

import pytest

from broker.cli.tools.topics import Complaints


def test_the_same_error_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    complaints = Complaints()
    for text in ("a:1: Connection refused", "a:1: Connection refused", "b", "a:1: gone"):
        complaints(text)
    assert capsys.readouterr().err.splitlines() == [
        f"twinwire: {text}; trying again" for text in ("a:1: Connection refused", "b", "a:1: gone")
    ]
