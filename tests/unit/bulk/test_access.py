"""Files of tokens, and who the broker is to pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.bulk.access import (
    HOLD,
    IDENTITY,
    READ,
    WRITE,
    Access,
    IdentityError,
    TokenFileError,
    identity,
)
from broker.bulk.errors import RefusedError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("one two\n", ":1: expected NAME TOKEN RIGHTS"),
        ("# fine\n\na b read,red\n", ":3: unknown right; expected NAME TOKEN RIGHTS"),
        ("a admin SECRET\n", r":1: unknown right; expected (?!.*SECRET)"),  # a file of the console
        ("a b read x..y\n", ":1: not a pattern"),
    ],
)
def test_files_that_do_not_read(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "tokens"
    file.write_text("good g read\n")
    access = Access(file)
    file.write_text(text)
    with pytest.raises(TokenFileError, match=reason):
        access.reload()
    assert access.caller("Bearer g", "").name == "good"
    file.unlink()
    with pytest.raises(OSError, match="No such file"):
        access.reload()
    assert access.caller("Bearer g", "").name == "good"


def test_what_a_token_may(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(b"one t\xc3\xb6\xff read,hold a.* b\ntwo t2 write\n")
    access = Access(file)
    one = access.caller("Bearer t\u00f6\udcff", "")
    assert one.may(READ, "a.x")
    assert one.may(HOLD, "b")
    assert not one.may(READ, "a")
    assert not one.may(WRITE, "b")
    assert access.caller("bEaReR  t2 ", "").may(WRITE, "any")
    for wrong in (None, "", "t2", "Basic t2", "Bearer", "Bearer t3", "Bearer t2 t2"):
        with pytest.raises(RefusedError) as caught:
            access.caller(wrong, "")
        assert caught.value.status == 401


def test_nobody_is_asked_without_a_file() -> None:
    caller = Access(None).caller(None, "10.1.1.1")
    assert caller.name == "10.1.1.1"
    assert caller.may(WRITE, "t")


def test_the_broker_is_who_it_was(tmp_path: Path) -> None:
    first = identity(tmp_path, "", None)
    assert (first.name, first.partition) == (first.broker_id, 0)
    assert identity(tmp_path, "n", 7) == type(first)("n", first.broker_id, 7)
    assert identity(tmp_path, "", None).partition == 7, "kept"
    for garbled in (b"", b"[]", b'{"broker_id": "x", "partition": 0}', b"\xff"):
        (tmp_path / IDENTITY).write_bytes(garbled)
        with pytest.raises(IdentityError):
            identity(tmp_path, "", None)


def test_a_folder_that_takes_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{IDENTITY}.new").mkdir()
    assert len(identity(tmp_path / "data", "", None).broker_id) == 32
    assert "the next start has another id" in caplog.text
