"""Files of the page: types, compression, validators."""

from __future__ import annotations

import gzip
from pathlib import Path

from support.console import console

from broker.console import assets
from broker.console.assets import load


def test_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "pages" / "a.js").write_text("x" * 1000)
    (tmp_path / ".hidden").write_text("x")
    found = load(tmp_path)
    assert set(found) == {"index.html", "pages/a.js"}
    assert found["pages/a.js"].kind == "text/javascript; charset=utf-8"
    assert gzip.decompress(found["pages/a.js"].packed) == b"x" * 1000


async def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    text = "let x = 1;\n" * 100
    (tmp_path / "a.js").write_text(text)
    asset = load(tmp_path)["a.js"]
    assets.ASSETS["test/a.js"] = asset
    try:
        async with console(tmp_path / "b") as broker:
            path = "/test/a.js"
            plain = await broker.ask("GET", path, None, {"Accept-Encoding": "identity"})
            assert plain.body == text.encode()
            assert "Content-Encoding" not in plain.headers
            packed = await broker.ask("GET", path)  # the client unpacks it
            assert packed.headers["Content-Encoding"] == "gzip"
            assert packed.body == text.encode()
            again = await broker.ask("GET", path, None, {"If-None-Match": packed.headers["ETag"]})
            assert (again.status, again.body) == (304, b"")
            head = await broker.ask("HEAD", path)
            assert (head.status, head.body) == (200, b"")
    finally:
        del assets.ASSETS["test/a.js"]
