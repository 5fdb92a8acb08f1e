"""The content of an object of an object store, in the stored pieces."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from broker.console import errors, limits
from broker.console.api.jetstream.service import need_stream
from broker.console.api.jetstream.streams import OBJECT_PREFIX
from broker.console.errors import RefusedError
from broker.console.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.console.context import Call, ConsoleContext
    from broker.protocols.jetstream.publish.stream import Stream

_DIGEST = "SHA-256="
_NUID = re.compile(r"[\w-]+", re.ASCII)  # it becomes a token of a subject


class StoredObject(NamedTuple):
    """An object: its size in bytes, its digest, and the subject of its pieces."""

    name: str
    size: int
    digest: str
    subject: str  # of the pieces
    stream: Stream

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its content. ValueError at the end if the size or digest differs."""
        summed, size, seq, pauses = hashlib.sha256(), 0, 1, Pauses()
        while seq:
            found, seq = self.stream.lookup.page(
                self.subject, seq, limit=limits.STREAM_SCAN_STEP, bytes_max=limits.STREAM_SCAN_BYTES
            )
            for *_, body in found:
                summed.update(body)
                size += len(body)
                yield body
            await pauses.pause()
        digest = _DIGEST + base64.urlsafe_b64encode(summed.digest()).decode()
        if size != self.size or self.digest.rstrip("=") not in ("", digest.rstrip("=")):
            raise ValueError(f"{self.name!r}: {size} of {self.size} bytes, or another digest")


def stored_object(context: ConsoleContext, call: Call) -> StoredObject:
    """The object in the path. RefusedError."""
    _, stream = need_stream(context, call)
    name = call.names["object"]
    bucket = stream.name.removeprefix(OBJECT_PREFIX)
    token = base64.urlsafe_b64encode(name.encode()).decode()
    found, _ = stream.lookup.page(
        f"$O.{bucket}.M.{token}", stream.store.last_seq, newest_first=True, limit=1
    )
    fields = _read_fields(found[0][-1]) if found else None
    if fields is None:
        raise RefusedError(errors.NO_OBJECT, object=name)
    size, digest, nuid = fields
    return StoredObject(name, size, digest, f"$O.{bucket}.C.{nuid}", stream)


def _read_fields(body: bytes) -> tuple[int, str, str] | None:
    """Size, digest and id of an object from its last message, which any client may have written.
    None: the object is deleted or a link, or the message is invalid."""
    try:
        fields: Any = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(fields, dict) or fields.get("deleted"):
        return None
    options = fields.get("options")
    if isinstance(options, dict) and options.get("link"):
        return None
    size, digest, nuid = fields.get("size", 0), fields.get("digest", ""), fields.get("nuid")
    if type(size) is not int or size < 0 or not isinstance(digest, str):
        return None
    if not isinstance(nuid, str) or not _NUID.fullmatch(nuid):
        return None
    return size, digest, nuid
