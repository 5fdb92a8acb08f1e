"""Write the JavaScript libraries of the console's page, broker/console/static/vendor, from npm.

    python tools/vendor_console.py            # needs npm; manifest.json lists what was written

The versions are below. The libraries that the page needs at once are joined into one module, ui.js:
a request costs more than their few kilobytes, and a browser cannot resolve the bare names by which
they import each other without an inline import map, which the page's security policy forbids.
Charts are a module of their own with their styles, which the page loads when it shows the first
one.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).resolve().parents[1] / "broker" / "console" / "static" / "vendor"


@dataclass(frozen=True, slots=True)
class Package:
    """A package of npm and the files that the page needs of it."""

    name: str
    version: str
    licence: str
    # The name that other modules import, the file of the package that it means, what it becomes.
    files: tuple[tuple[str, str, str], ...]

    @property
    def licence_file(self) -> str:
        return f"LICENSE.{self.name.removeprefix('@').replace('/', '-')}"


# A module stands after those that it imports.
PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "MIT",
        (
            ("preact", "dist/preact.mjs", "ui.js"),
            ("preact/hooks", "hooks/dist/hooks.mjs", "ui.js"),
        ),
    ),
    Package("htm", "3.1.1", "Apache-2.0", (("htm", "dist/htm.module.js", "ui.js"),)),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "MIT",
        (("@preact/signals-core", "dist/signals-core.mjs", "ui.js"),),
    ),
    Package(
        "@preact/signals", "2.11.4", "MIT", (("@preact/signals", "dist/signals.mjs", "ui.js"),)
    ),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        (
            ("uplot", "dist/uPlot.iife.min.js", "uplot.js"),
            ("uplot.css", "dist/uPlot.min.css", "uplot.js"),
        ),
    ),
)

# What ui.js exports, by the module that has it.
EXPORTS = {
    "preact": ("Component", "Fragment", "createContext", "h", "render"),
    "preact/hooks": (
        "useCallback",
        "useContext",
        "useEffect",
        "useErrorBoundary",
        "useId",
        "useLayoutEffect",
        "useMemo",
        "useRef",
        "useState",
    ),
    "@preact/signals": (
        "batch",
        "computed",
        "effect",
        "signal",
        "untracked",
        "useComputed",
        "useSignal",
        "useSignalEffect",
    ),
}

_IMPORT = re.compile(r'import\{([^}]*)\}from"([^"]+)";?')
_EXPORT_FROM = re.compile(r'export\{([^}]*)\}from"([^"]+)";?')
_EXPORT = re.compile(r"export\{([^}]*)\};?")
_SOURCE_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _pairs(names: str) -> list[tuple[str, str]]:
    """The names of `a as b, c` as (a, b), (c, c)."""
    found = []
    for name in names.split(","):
        inner, _, outer = name.strip().partition(" as ")
        found.append((inner, outer or inner))
    return found


def as_constant(module: str, source: str, variables: dict[str, str]) -> str:
    """The module as `const variable=(()=>{...})()`, an object with what it exports."""
    exported: list[str] = []

    def imports(match: re.Match[str]) -> str:
        names = ",".join(
            inner if inner == outer else f"{inner}:{outer}" for inner, outer in _pairs(match[1])
        )
        return f"const{{{names}}}={variables[match[2]]};"

    def exports_from(match: re.Match[str]) -> str:
        owner = variables[match[2]]
        exported.extend(f"{outer}:{owner}.{inner}" for inner, outer in _pairs(match[1]))
        return ""

    def exports(match: re.Match[str]) -> str:
        exported.extend(f"{outer}:{inner}" for inner, outer in _pairs(match[1]))
        return ""

    text = _SOURCE_MAP.sub("", source)
    text = _EXPORT_FROM.sub(exports_from, _IMPORT.sub(imports, text))
    text = _EXPORT.sub(exports, text)
    if "export default " in text:
        text = text.replace("export default ", "const standard=")
        exported.append("default:standard")
    if re.search(r'(?:^|[;}\n])(?:import[\s{*"]|export[\s{*])', text) or not exported:
        sys.exit(f"{module} imports or exports in a way that this script does not know")
    return f"const {variables[module]}=(()=>{{{text};return{{{','.join(exported)}}}}})();\n"


def joined(modules: list[tuple[str, str, str]]) -> str:
    """One module of those given as (name, title, source), each after those that it imports."""
    variables = {name: f"$module{number}" for number, (name, _, _) in enumerate(modules)}
    parts = [
        f"/*! {title} */\n{as_constant(name, source, variables)}" for name, title, source in modules
    ]
    for name, wanted in EXPORTS.items():
        parts.append(f"export const {{{', '.join(wanted)}}} = {variables[name]};\n")
    html = f"{variables['htm']}.default.bind({variables['preact']}.h)"
    return "".join([*parts, f"export const html = {html};\n"])


def unpacked(package: Package, folder: Path) -> dict[str, bytes]:
    """The files of the package that the page needs, and its licence."""
    subprocess.run(
        ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=120,
    )
    name = package.name.removeprefix("@").replace("/", "-")
    wanted = ["LICENSE", *(path for _, path, _ in package.files)]
    with tarfile.open(folder / f"{name}-{package.version}.tgz") as archive:
        found = {path: archive.extractfile(f"package/{path}") for path in wanted}
        return {path: file.read() for path, file in found.items() if file is not None}


def shipped(originals: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    """What is written into the folder, by name, except the manifest."""
    written: dict[str, bytes] = {}
    modules: list[tuple[str, str, str]] = []
    for package in PACKAGES:
        files = originals[package.name]
        written[package.licence_file] = files["LICENSE"]
        for name, path, target in package.files:
            if target == "ui.js":
                title = f"{name}, of {package.name} {package.version}, {package.licence}"
                modules.append((name, title, files[path].decode()))
    plot, style = (originals["uplot"][path].decode() for _, path, _ in PACKAGES[-1].files)
    written["ui.js"] = joined(modules).encode()
    written["uplot.js"] = (
        f"{plot.rstrip()}\nexport default uPlot;\nexport const css = {json.dumps(style)};\n"
    ).encode()
    return written


def manifest(originals: dict[str, dict[str, bytes]], written: dict[str, bytes]) -> bytes:
    """Which files there are, and of what they were made."""
    packages = [
        {
            "name": package.name,
            "version": package.version,
            "licence": package.licence,
            "licence_file": package.licence_file,
            "files": [
                {
                    "path": path,
                    "sha256": sha256(originals[package.name][path]),
                    "shipped_in": target,
                }
                for _, path, target in package.files
            ],
        }
        for package in PACKAGES
    ]
    files = {name: sha256(data) for name, data in sorted(written.items())}
    return json.dumps({"packages": packages, "shipped": files}, indent=2).encode() + b"\n"


def main() -> None:
    originals = {}
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            originals[package.name] = unpacked(package, Path(folder))
    written = shipped(originals)
    written["manifest.json"] = manifest(originals, written)
    VENDOR.mkdir(parents=True, exist_ok=True)
    for path in VENDOR.iterdir():
        path.unlink()
    for name, data in written.items():
        (VENDOR / name).write_bytes(data)
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
