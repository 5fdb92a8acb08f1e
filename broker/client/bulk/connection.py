"""One connection to the bulk door of one broker: synchronous, kept alive, made again when lost.

Everything asked for may be asked again: ranges name their seqs, staged pieces their place, a commit
its epoch. Only `append` may happen twice; that is what at least once means.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, quote_plus, urlencode

from broker.client.bulk import answers, defaults, losses
from broker.client.bulk.errors import (
    BeyondEnd,
    BulkError,
    OtherIncarnation,
    Refused,
    Trimmed,
    Unauthorized,
    UnknownTopic,
    Unreachable,
    WrongDoor,
)
from broker.client.bulk.frame import read_answer, read_frame
from broker.client.bulk.options import Options, parse_server, parse_servers

_PREFIX: Final = "/bulk/v1"
NO_DOOR: Final = "HTTP status {status}; what answers there may be no bulk door"
_BUSY: Final = frozenset({429, 503})
_Told = TypeVar("_Told")


class _Wire(http.client.HTTPConnection):
    """A connection that may be TLS, to the name that the certificate must have."""

    def __init__(
        self, host: str, port: int, timeout_s: float, context: ssl.SSLContext | None, name: str
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._context = context
        self._name = name or host

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


class Connection:
    """A broker's bulk door, `HOST:PORT` or `https://HOST:PORT`. For one thread at a time."""

    def __init__(
        self,
        server: str,
        options: Options | None = None,
        *,
        wait: Callable[[float], None] = time.sleep,
        **changes: Any,
    ) -> None:
        """`changes` go over the options: Connection(server, token="...", retries=2)."""
        self.server = server
        self.options = replace(options or Options(), **changes)
        host, port, https = parse_server(server)
        tls = self.options.tls
        context = None
        if https or tls is not None:
            try:
                context = tls.context() if tls is not None else ssl.create_default_context()
            except OSError as error:
                raise BulkError(f"{server}: TLS files: {error}") from error
        name = tls.server_name if tls is not None else ""
        self._wire = _Wire(host, port, self.options.timeout_s, context, name)
        self._wait = wait
        self._tls = context is not None
        self._token: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the next call makes it again."""
        self._wire.close()

    # --- reading

    def topics(
        self, subscribe: Sequence[str] | None = None, pattern: str | None = None
    ) -> answers.Listing:
        """The logs there are, those named, or those whose name matches a regular expression."""
        asks = [{} if pattern is None else {"pattern": pattern}]
        if subscribe is not None:
            asks = list(_named(dict.fromkeys(subscribe)))
        told = [self._told(answers.listing, "GET", "/topics", query) for query in asks]
        if any(other.broker_id != told[0].broker_id for other in told):
            raise BulkError(f"{self.server}: /topics: more than one broker answers there")
        return replace(told[0], topics=tuple(topic for one in told for topic in one.topics))

    def offsets(self, times_ns: Mapping[str, int]) -> dict[str, answers.TimeOffset]:
        """Where the records of a time begin, for each topic."""
        wanted = {topic: {"time_ns": at} for topic, at in times_ns.items()}
        return self._told(answers.offsets, "POST", "/offsets", body={"topics": wanted})

    def range(
        self,
        topic: str,
        start: int,
        end: int | None = None,
        max_bytes: int | None = None,
        incarnation: str | None = None,
    ) -> memoryview:
        """One frame of the records from `start` on, before `end`; `next_of` says where it ends."""
        query = {"start": str(start), "max_bytes": str(max_bytes or self.options.fetch_bytes)}
        if end is not None:
            query["end"] = str(end)
        if incarnation:
            query["inc"] = incarnation
        return memoryview(self._ask("GET", f"/range/{_path(topic)}", query, frame=True))

    # --- named readers

    def put_reader(
        self,
        name: str,
        positions: Mapping[str, tuple[int, str] | None],
        ttl_s: float | None = None,
        hold: bool | None = None,
    ) -> None:
        """Tells how far a reader is: (seq, incarnation) per topic, None removes one.

        What is not said stays as it was: other topics, the time to live, whether it holds.
        """
        told = {
            topic: None if at is None else {"seq": at[0], "incarnation": at[1]}
            for topic, at in positions.items()
        }
        body = {"ttl_s": ttl_s, "positions": told, "hold": hold}
        said = {key: value for key, value in body.items() if value is not None}
        self._ask("PUT", f"/readers/{_path(name)}", body=said)

    def delete_reader(self, name: str) -> None:
        """Forgets a reader and what is held for it."""
        self._ask("DELETE", f"/readers/{_path(name)}")

    def readers(self, name: str | None = None) -> dict[str, Any]:
        """What the broker knows of named readers, as it says it."""
        query = {"name": name} if name is not None else {}
        return self._told(dict, "GET", "/readers", query)

    # --- writing

    def append(
        self, topic: str, block: bytes | bytearray | memoryview, *, dedupe: bool = False
    ) -> dict[str, Any]:
        """Publishes a block, perhaps twice when the connection is lost."""
        query = {"dedupe": "1"} if dedupe else {}
        return self._told(dict, "POST", f"/append/{_path(topic)}", query, block)

    def stage(
        self,
        writer: str,
        epoch: int,
        topic: str,
        part: int,
        attempt: str | int,
        block: bytes | bytearray | memoryview,
        offset: int = 0,
    ) -> int:
        """Adds a block to what an attempt has staged, at `offset`; where the next one goes.

        An attempt has a word of its own, also when the same work is done again.
        """
        path = f"/tx/{_path(writer)}/{epoch}/{_path(topic)}/{part}/{_path(str(attempt))}"
        return self._told(_offset, "POST", path, {"offset": str(offset)}, block)

    def commit(
        self, writer: str, epoch: int, topics: Mapping[str, Sequence[tuple[int, str | int, int]]]
    ) -> dict[str, answers.Committed]:
        """Publishes what these (part, attempt, bytes) have staged; once, if said more often."""
        body = {"topics": {topic: [list(won) for won in all_] for topic, all_ in topics.items()}}
        return self._told(
            answers.committed, "POST", f"/tx/{_path(writer)}/{epoch}/commit", body=body
        )

    def committed(self, writer: str) -> dict[str, Any]:
        """The last epoch of a writer per topic, as the broker says it."""
        return self._told(dict, "GET", f"/tx/{_path(writer)}")

    def drop_staged(self, writer: str, epoch: int) -> None:
        """Forgets what is staged and not committed."""
        self._ask("DELETE", f"/tx/{_path(writer)}/{epoch}")

    # --- asking

    def _told(
        self,
        made: Callable[[Any], _Told],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> _Told:
        answer = self._ask(method, path, query, body)
        try:
            return made(json.loads(answer))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BulkError(f"{self.server}: {path}: this is no answer: {error!r}") from error

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        frame: bool = False,
    ) -> bytes:
        """The answer's body; asks again when the connection is lost or the broker busy."""
        url = _PREFIX + path + (f"?{urlencode(query)}" if query else "")
        lost, waited_s, fresh_token = 0, 0.0, False
        while True:
            try:
                status, pause, answer = self._once(method, url, body, frame)
            except losses.LOST as error:
                self.close()
                lost += 1
                lasting = losses.is_lasting(error)
                if lasting or lost > self.options.retries:
                    text = f"{self.server}: {losses.said(error, plain=not self._tls)}"
                    raise (WrongDoor if lasting else Unreachable)(text) from error
                self._wait(backoff_s(lost))
                continue
            if status < 400:
                return answer
            if status in _BUSY and waited_s + pause <= self._patience_s:
                waited_s += pause
                self._wait(pause)
                continue
            if status == 401 and self.options.token_file and not fresh_token:
                fresh_token, self._token = True, None
                continue
            raise refusal(status, path, answer, self.server)

    @property
    def _patience_s(self) -> float:
        """How long a busy broker is waited for."""
        return self.options.timeout_s * self.options.retries

    def _once(self, method: str, url: str, body: Any, frame: bool) -> tuple[int, float, bytes]:
        """(status, seconds the broker wants to be left alone, body)."""
        if self._token is None:
            self._token = self._read_token()
        headers = {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if frame and self.options.compress:
            headers["Accept-Encoding"] = self.options.compress
        sent: Any = body
        if isinstance(body, dict):
            headers["Content-Type"] = "application/json"
            sent = json.dumps(body).encode()
        elif body is not None:
            headers["Content-Type"] = "application/octet-stream"
        self._wire.request(method, url, sent, headers)
        with self._wire.getresponse() as response:
            if frame and response.status == 200:
                return 200, 0.0, read_frame(response)
            pause = retry_after_s(response.getheader("Retry-After"))
            return response.status, pause, read_answer(response)

    def _read_token(self) -> str:
        try:
            return self.options.secret()
        except (OSError, UnicodeDecodeError) as error:
            raise BulkError(f"token file {self.options.token_file}: {error}") from error


def connect(
    servers: str | list[str] | tuple[str, ...], options: Options | None = None, **changes: Any
) -> list[Connection]:
    """One connection for each server; nothing is dialled before it is used."""
    return [Connection(server, options, **changes) for server in parse_servers(servers)]


def backoff_s(attempt: int) -> float:
    """How long to wait before the attempt after this one; many clients do not come at once."""
    longest: float = min(defaults.RETRY_S * 2 ** (attempt - 1), defaults.RETRY_S_MAX)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311


def retry_after_s(text: str | None) -> float:
    """Seconds of a Retry-After, whole or broken; a date or nothing means a moment."""
    try:
        seconds = float(text or "")
    except ValueError:
        return defaults.RETRY_S
    return min(max(seconds, defaults.RETRY_S), defaults.BUSY_S_MAX)


def refusal(status: int, path: str, body: bytes, server: str) -> Refused:
    """The error that an answer means."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    text = f"{server}: {path}: {answer.pop('error', '') or NO_DOOR.format(status=status)}"
    kinds: dict[int, type[Refused]] = {401: Unauthorized, 403: Unauthorized}
    if path.startswith("/range/"):
        kinds |= {404: UnknownTopic, 410: Trimmed, 416: BeyondEnd}
    kind = kinds.get(status, Refused)
    if status == 404 and path.startswith("/append/"):
        kind = UnknownTopic
    if status == 409 and "incarnation" in answer:
        kind = OtherIncarnation
    return kind(text, status, answer)


def _offset(answer: Any) -> int:
    return int(answer["offset"])


def _path(name: str) -> str:
    return quote(name, safe="")


def _named(names: Iterable[str]) -> Iterator[dict[str, str]]:
    """Queries for these topics, none longer than a request's first line may be."""
    plain: list[str] = []
    torn: list[str] = []  # by a list with commas between them
    for name in names:
        (torn if "," in name or name != name.strip() else plain).append(name)
    for some in _pieces([re.escape(name) for name in torn], defaults.PATTERN_CHARS):
        yield {"pattern": "|".join(some)}
    for some in _pieces(plain, defaults.NAMES_BYTES):
        yield {"subscribe": ",".join(some)}
    if not plain and not torn:
        yield {"subscribe": ""}


def _pieces(words: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """In order, each of about so many bytes at most as they stand in a URL."""
    first = size = 0
    for at, word in enumerate(words):
        size += len(quote_plus(word)) + len("%2C")
        if size > most and at > first:
            yield words[first:at]
            first, size = at, len(quote_plus(word)) + len("%2C")
    if words:
        yield words[first:]
