"""The JavaScript libraries of the page: those of the list, unchanged, with their licences."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

STATIC = Path(__file__).resolve().parents[2] / "broker" / "console" / "static"
VENDOR = STATIC / "vendor"
LICENCES = {"MIT": "MIT License", "Apache-2.0": "Apache License"}
MODULES = sorted([*STATIC.glob("*.js"), *STATIC.glob("pages/*.js")])


def manifest() -> dict[str, object]:
    return json.loads((VENDOR / "manifest.json").read_text())


def test_files_are_those_of_the_list() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "manifest.json"
    }
    assert found == manifest()["shipped"]


@pytest.mark.parametrize("package", manifest()["packages"], ids=lambda package: package["name"])
def test_each_has_its_licence(package: dict[str, str]) -> None:
    text = (VENDOR / package["licence_file"]).read_text()
    head = text[:400]
    assert LICENCES[package["licence"]] in head or "Permission is hereby granted" in text


def test_versions_are_those_of_the_script() -> None:
    script = (STATIC.parents[2] / "tools" / "vendor_console.py").read_text()
    for package in manifest()["packages"]:
        assert re.search(rf'"{re.escape(package["name"])}",\s*"{package["version"]}"', script)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_make_no_markup_of_texts(path: Path) -> None:
    """Names and bodies are text nodes: nothing parses them, nothing runs them."""
    text = path.read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "style=",
        "http://",
        "https://",
    ):
        assert word not in text
