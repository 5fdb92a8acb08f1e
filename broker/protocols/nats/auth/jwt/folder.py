"""A folder of account tokens: `<account key>.jwt` each.

File calls run in threads, one change after the other; names and expiry are kept in memory. A new
token replaces the old one by rename, so that a reader finds one of the two, never a part.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from broker.base.durable import sync_path
from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.protocols.nats import limits
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.auth.jwt.tokens import Invalid

log = logging.getLogger("broker.nats")

SUFFIX: Final = ".jwt"
_FOLDER_MODE: Final = 0o750
_FILE_MODE: Final = 0o640
_NOTHING: Final = bytes(32)


@dataclass(slots=True)
class _File:
    digest: bytes
    ends: float  # seconds since 1970, 0 = never


class TokenFolder:
    """The tokens in a folder."""

    def __init__(
        self,
        path: Path,
        *,
        limit: int = 0,
        evict: bool = False,
        ttl_ns: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """At `limit`, either the least recently used token is removed or new ones are refused."""
        self.path = path
        self.changed: list[Callable[[str, str], object]] = []  # called with account and token
        self.removed: list[Callable[[str], object]] = []
        self._limit = limit
        self._evict = evict
        self._ttl = ttl_ns / SECOND
        self._clock = clock
        self._files: OrderedDict[str, _File] = OrderedDict()  # least recently used first
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Create the folder if necessary, and read its contents; OSError."""
        self.path.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        for name, text in self._scan():
            self._record(name, text)

    def _scan(self) -> list[tuple[str, str]]:
        found = []
        for path in sorted(self.path.glob(f"*{SUFFIX}")):
            if not nkeys.is_any_public(path.stem):
                continue
            try:
                found.append((path.stem, _read(path) or ""))
            except OSError as error:  # of this account only
                _unreadable(path.stem, error)
        return found

    def _record(self, name: str, text: str) -> None:
        ends = self._clock() + self._ttl if self._ttl else 0.0
        if not self._ttl:
            try:
                ends = tokens.decode_generic(text.strip())[0].exp
            except Invalid:
                ends = 0.0
        self._files[name] = _File(hashlib.sha256(text.encode()).digest(), ends)
        self._files.move_to_end(name)

    def _mark_used(self, name: str) -> None:
        file = self._files.get(name)
        if file is not None:
            if self._ttl:
                file.ends = self._clock() + self._ttl
            self._files.move_to_end(name)

    @property
    def digest(self) -> bytes:
        """The digest of all tokens: equal on servers with the same tokens."""
        whole = int.from_bytes(_NOTHING)
        for file in self._files.values():
            whole ^= int.from_bytes(file.digest)
        return whole.to_bytes(len(_NOTHING))

    def names(self) -> list[str]:
        """The names of tokens that have not expired."""
        now = self._clock()
        return sorted(name for name, file in self._files.items() if not 0 < file.ends < now)

    def _file(self, name: str) -> Path:
        if not nkeys.is_any_public(name):
            raise ValueError("invalid public key")
        return self.path / f"{name}{SUFFIX}"

    async def load(self, name: str) -> str | None:
        """The token; None if it is missing. OSError."""
        text = await asyncio.to_thread(_read, self._file(name))
        if text is not None:
            self._mark_used(name)
        return text

    async def each(self) -> AsyncIterator[tuple[str, str]]:
        """The name and text of each token that has not expired."""
        for name in self.names():
            try:
                text = await asyncio.to_thread(_read, self._file(name))
            except OSError as error:
                _unreadable(name, error)
                continue
            if text:
                yield name, text

    async def save(self, name: str, text: str) -> None:
        """Store a token; ValueError if the folder is full; OSError."""
        path = self._file(name)
        if not text:
            raise ValueError("invalid JWT")
        async with self._lock:
            known = self._files.get(name)
            if known is not None and known.digest == hashlib.sha256(text.encode()).digest():
                self._mark_used(name)
                return
            if known is None and self._limit and len(self._files) >= self._limit:
                if not self._evict:
                    raise ValueError("jwt store is full")
                oldest = next(iter(self._files))
                await asyncio.to_thread(self._file(oldest).unlink, missing_ok=True)
                del self._files[oldest]
            await asyncio.to_thread(_write, path, text)
            self._record(name, text)
        for act in self.changed:
            act(name, text)

    async def save_if_newer(self, name: str, text: str) -> None:
        """Store a token of another server; ValueError if it belongs to another account."""
        try:
            claims, _ = tokens.decode_generic(text)
        except Invalid as error:
            raise ValueError(str(error)) from error
        if claims.sub != name:
            raise ValueError("jwt subject nkey and provided nkey do not match")
        old = await self.load(name)
        if old is not None:
            try:
                before, _ = tokens.decode_generic(old.strip())
            except Invalid:
                pass
            else:
                if before.iat > claims.iat or (before.jti and before.jti == claims.jti):
                    return
        await self.save(name, text)

    async def delete(self, name: str, *, keep: bool) -> bool:
        """Delete a token; `keep`: only rename it. False if it is missing; OSError."""
        path = self._file(name)
        async with self._lock:
            existed = await asyncio.to_thread(_remove, path, keep)
            self._files.pop(name, None)
        if existed:
            for act in self.removed:
                act(name)
        return existed

    async def expire(self) -> None:
        """Remove expired tokens."""
        now = self._clock()
        for name in [name for name, file in self._files.items() if 0 < file.ends < now]:
            async with self._lock:
                try:
                    await asyncio.to_thread(self._file(name).unlink, missing_ok=True)
                except OSError as error:  # it is tried again later
                    log.error("account %s: its expired JWT cannot be removed: %s", name, error)
                    continue
                self._files.pop(name, None)

    async def reload(self) -> None:
        """Read the folder again, because another process may have changed files."""
        async with self._lock:
            found = await asyncio.to_thread(self._scan)
            before, self._files = self._files, OrderedDict()
            for name, text in found:
                self._record(name, text)
        for name, text in found:
            old = before.get(name)
            if old is None or old.digest != self._files[name].digest:
                for act in self.changed:
                    act(name, text)


def _unreadable(name: str, error: OSError) -> None:
    log.error("account %s: its JWT cannot be read: %s", name, error)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(limits.NATS_TOKEN_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_path(path.parent)  # a revocation that was answered must not come back


def _remove(path: Path, keep: bool) -> bool:
    try:
        if keep:
            path.replace(path.with_name(f"{path.name}.deleted"))
        else:
            path.unlink()
    except FileNotFoundError:
        return False
    sync_path(path.parent)
    return True
