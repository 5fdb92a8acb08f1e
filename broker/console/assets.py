"""The files of the page, in memory: read and compressed when this module is imported.

The class Pages imports it on a thread, because that takes too long for a turn of the loop.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Final

from aiohttp import web

from broker.base.values import dataclass

FOLDER: Final = Path(__file__).with_name("static")
FRONT: Final = "index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    kind: str
    data: bytes
    packed: bytes
    etag: str

    def response(self, request: web.Request) -> web.Response:
        """The file, or 304 if the client's copy is the same."""
        headers = {
            "ETag": self.etag,
            "Cache-Control": "no-cache",  # checked each time, because names have no version
            "Vary": "Accept-Encoding",
        }
        known = request.headers.get("If-None-Match", "")
        if self.etag in (part.strip().removeprefix("W/") for part in known.split(",")):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = self.kind
        data = self.data
        if "gzip" in request.headers.get("Accept-Encoding", "") and len(self.packed) < len(data):
            headers["Content-Encoding"] = "gzip"
            data = self.packed
        return web.Response(body=data, headers=headers)


def load(folder: Path) -> dict[str, Asset]:
    """All files below the folder, by their paths in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            data = path.read_bytes()
            etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            name = path.relative_to(folder).as_posix()
            packed = gzip.compress(data, 9, mtime=0)
            found[name] = Asset(_TYPES.get(path.suffix, _PLAIN), data, packed, etag)
    return found


ASSETS: Final = load(FOLDER)
