"""One connection to the bulk API of one broker: synchronous, kept alive, reopened when lost.

Every request can be repeated: ranges name their seqs, staged blocks their offset, a commit its
epoch. Only a repeated `append` may publish twice.

There are two kinds of lost connections. If the broker restarts or the network is interrupted, the
request is repeated. If the certificate is not trusted or the server does not use HTTP or TLS,
another attempt fails in the same way, so the request fails at once.
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
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, quote_plus, urlencode

from broker.client.bulk import limits
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

LOST: Final = (OSError, http.client.HTTPException, EOFError)
_HTTP: Final = "HTTP/"
_SHOWN: Final = 60  # characters shown of an answer that is not HTTP
# OpenSSL's reasons if the server does not use TLS, and if it rejects the client certificate.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
_NOT_OURS: Final = frozenset({
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "TLSV1_ALERT_UNKNOWN_CA",
})  # fmt: skip
_PREFIX: Final = "/bulk/v1"
NOT_BULK: Final = "HTTP status {status}; the server may not be a bulk API"
_BUSY: Final = frozenset({429, 503})
_Decoded = TypeVar("_Decoded")


@dataclass(frozen=True, slots=True)
class Topic:
    """One log. Its records have seqs of [first, next), some of which may be missing.

    In a `stream` of JetStream single messages are deleted: a higher `first` does not mean that
    records were dropped unread.
    """

    name: str
    incarnation: str
    first: int
    next: int
    bytes: int
    messages: int
    held_from: int | None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The logs of one broker. `partition` is the same in each response of this broker."""

    broker: str
    broker_id: str
    partition: int
    topics: tuple[Topic, ...]

    def find(self, name: str) -> Topic | None:
        """The topic of this name, if the broker has it."""
        return next((topic for topic in self.topics if topic.name == name), None)


@dataclass(frozen=True, slots=True)
class TimeOffset:
    """The first record at or after a time. If `exact` is False, no such record exists yet, and
    `seq` is that of the next record."""

    seq: int
    incarnation: str
    exact: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of a commit for one topic.

    `state` is "committed", "already" (an earlier commit had added the records) or "deleted" (the
    topic was deleted after the commit had begun, and its records with it).
    """

    records: int
    first: int
    last: int
    state: str

    @property
    def already(self) -> bool:
        """Whether this commit added nothing."""
        return self.state == "already"


def _listing_of(answer: Mapping[str, Any]) -> Listing:
    """Parse the response to /topics. ValueError, KeyError, TypeError: it is invalid."""
    topics = tuple(
        Topic(
            str(t["topic"]),
            str(t["incarnation"]),
            int(t["first"]),
            int(t["next"]),
            int(t["bytes"]),
            int(t["messages"]),
            None if t.get("held_from") is None else int(t["held_from"]),
            bool(t.get("stream")),
        )
        for t in answer["topics"]
    )
    return Listing(
        str(answer["broker"]), str(answer["broker_id"]), int(answer["partition"]), topics
    )


def _offsets_of(answer: Mapping[str, Any]) -> dict[str, TimeOffset]:
    """Parse the response to /offsets. ValueError, KeyError, TypeError: it is invalid."""
    return {
        name: TimeOffset(int(t["seq"]), str(t["incarnation"]), bool(t["exact"]))
        for name, t in answer["topics"].items()
    }


def _committed_of(answer: Mapping[str, Any]) -> dict[str, Committed]:
    """Parse the response to a commit. ValueError, KeyError, TypeError: it is invalid."""
    return {
        name: Committed(
            int(t.get("records") or 0),
            int(t.get("first") or 0),
            int(t.get("last") or 0),
            str(t["state"]),
        )
        for name, t in answer["topics"].items()
    }


def is_lasting(error: BaseException) -> bool:
    """Whether another attempt would fail in the same way."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    if isinstance(error, ssl.SSLError):
        return error.reason in _NO_TLS | _NOT_OURS
    return _is_not_http(error)


def describe(error: BaseException, *, plain: bool = False) -> str:
    """The error as a line of text. `plain`: the request was sent without TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return "the server does not use TLS"
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_OURS:
        return f"the server rejects the client certificate ({error.reason})"
    if _is_not_http(error):
        return f"the server does not use HTTP: {_line(error)[:_SHOWN]!r}"
    if plain and isinstance(error, http.client.RemoteDisconnected):
        return f"{error} (a bulk API with TLS needs https://)"
    # "Connection refused" rather than "[Errno 111] Connection refused"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _is_not_http(error: BaseException) -> bool:
    """Whether the server answered with something other than HTTP. An incomplete "HTTP/" does not
    count, because a lost connection can cut a status line."""
    return (
        isinstance(error, http.client.BadStatusLine)
        and not isinstance(error, http.client.RemoteDisconnected)
        and not _HTTP.startswith(_line(error)[: len(_HTTP)])
    )


def _line(error: BaseException) -> str:
    return str(getattr(error, "line", ""))


class _Wire(http.client.HTTPConnection):
    """An HTTP connection, with TLS if there is a context; `name` is checked against the
    certificate."""

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
    """A connection to the bulk API of a broker, `HOST:PORT` or `https://HOST:PORT`. It can be used
    by one thread at a time."""

    _wait: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(
        self,
        server: str,
        options: Options | None = None,
        **changes: Any,
    ) -> None:
        """`changes` override the options: Connection(server, token="...", retries=2)."""
        self.server = server
        self.options = replace(options or Options(), **changes)
        host, port, https = parse_server(server)
        tls = self.options.tls
        context = None
        if https or tls is not None:
            try:
                context = tls.context() if tls is not None else ssl.create_default_context()
            except OSError as error:
                reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
                raise BulkError(f"{server}: TLS files: {reason}") from error
        name = tls.server_name if tls is not None else ""
        self._wire = _Wire(host, port, self.options.timeout_s, context, name)
        self._tls = context is not None
        self._token: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call reopens it."""
        self._wire.close()

    # --- reading

    def topics(self, subscribe: Sequence[str] | None = None, pattern: str | None = None) -> Listing:
        """All logs, those with the given names, or those whose name matches the pattern."""
        queries = [{} if pattern is None else {"pattern": pattern}]
        if subscribe is not None:
            queries = list(_queries_for(dict.fromkeys(subscribe)))
        found = [self._decode(_listing_of, "GET", "/topics", query) for query in queries]
        if any(other.broker_id != found[0].broker_id for other in found):
            raise BulkError(f"{self.server}: /topics: more than one broker has this address")
        return replace(found[0], topics=tuple(topic for one in found for topic in one.topics))

    def offsets(self, times_ns: Mapping[str, int]) -> dict[str, TimeOffset]:
        """For each topic the first record at or after a time."""
        times = {topic: {"time_ns": at} for topic, at in times_ns.items()}
        return self._decode(_offsets_of, "POST", "/offsets", body={"topics": times})

    def range(
        self,
        topic: str,
        start: int,
        end: int | None = None,
        max_bytes: int | None = None,
        incarnation: str | None = None,
    ) -> memoryview:
        """Fetch one frame of the records from `start` on and before `end`. The frame may end
        earlier; `next` in its head is the next seq to request."""
        query = {"start": str(start), "max_bytes": str(max_bytes or self.options.fetch_bytes)}
        if end is not None:
            query["end"] = str(end)
        if incarnation:
            query["inc"] = incarnation
        return memoryview(self._request("GET", f"/range/{_path(topic)}", query, frame=True))

    # --- named readers

    def put_reader(
        self,
        name: str,
        positions: Mapping[str, tuple[int, str] | None],
        ttl_s: float | None = None,
        hold: bool | None = None,
    ) -> None:
        """Register or renew a reader: (seq, incarnation) per topic; None removes a topic.

        Omitted values are not changed: other topics, the time to live, the hold.
        """
        entries = {
            topic: None if at is None else {"seq": at[0], "incarnation": at[1]}
            for topic, at in positions.items()
        }
        values = {"ttl_s": ttl_s, "positions": entries, "hold": hold}
        body = {key: value for key, value in values.items() if value is not None}
        self._request("PUT", f"/readers/{_path(name)}", body=body)

    def delete_reader(self, name: str) -> None:
        """Delete a reader and its hold."""
        self._request("DELETE", f"/readers/{_path(name)}")

    def readers(self, name: str | None = None) -> dict[str, Any]:
        """The registered readers, in the JSON form of the broker."""
        query = {"name": name} if name is not None else {}
        return self._decode(dict, "GET", "/readers", query)

    # --- writing

    def append(
        self, topic: str, block: bytes | bytearray | memoryview, *, dedupe: bool = False
    ) -> dict[str, Any]:
        """Publish a block. If the connection is lost, its records may be published twice."""
        query = {"dedupe": "1"} if dedupe else {}
        return self._decode(dict, "POST", f"/append/{_path(topic)}", query, block)

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
        """Stage a block of an attempt at `offset`; return the offset of the next block.

        Each attempt needs a different name, even if it repeats the work of another attempt.
        """
        path = f"/tx/{_path(writer)}/{epoch}/{_path(topic)}/{part}/{_path(str(attempt))}"
        return self._decode(_offset, "POST", path, {"offset": str(offset)}, block)

    def commit(
        self, writer: str, epoch: int, topics: Mapping[str, Sequence[tuple[int, str | int, int]]]
    ) -> dict[str, Committed]:
        """Publish the staged blocks of these (part, attempt, bytes); a repeated call adds
        nothing."""
        body = {"topics": {topic: [list(won) for won in all_] for topic, all_ in topics.items()}}
        return self._decode(_committed_of, "POST", f"/tx/{_path(writer)}/{epoch}/commit", body=body)

    def committed(self, writer: str) -> dict[str, Any]:
        """The last epoch of a writer per topic, in the JSON form of the broker."""
        return self._decode(dict, "GET", f"/tx/{_path(writer)}")

    def drop_staged(self, writer: str, epoch: int) -> None:
        """Drop staged blocks that are not committed."""
        self._request("DELETE", f"/tx/{_path(writer)}/{epoch}")

    # --- requests

    def _decode(
        self,
        decode: Callable[[Any], _Decoded],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> _Decoded:
        answer = self._request(method, path, query, body)
        try:
            return decode(json.loads(answer))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BulkError(f"{self.server}: {path}: invalid response: {error!r}") from error

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        frame: bool = False,
    ) -> bytes:
        """Send a request and return the body of its response; repeat it if the connection is lost
        or the broker is busy."""
        url = _PREFIX + path + (f"?{urlencode(query)}" if query else "")
        lost, waited_s, token_renewed = 0, 0.0, False
        while True:
            try:
                status, pause, answer = self._request_once(method, url, body, frame)
            except LOST as error:
                self.close()
                lost += 1
                lasting = is_lasting(error)
                if lasting or lost > self.options.retries:
                    text = f"{self.server}: {describe(error, plain=not self._tls)}"
                    raise (WrongDoor if lasting else Unreachable)(text) from error
                self._wait(backoff_s(lost))
                continue
            if status < 400:
                return answer
            if status in _BUSY and waited_s + pause <= self._patience_s:
                waited_s += pause
                self._wait(pause)
                continue
            if status == 401 and self.options.token_file and not token_renewed:
                token_renewed, self._token = True, None
                continue
            raise refusal(status, path, answer, self.server)

    @property
    def _patience_s(self) -> float:
        """The longest total wait for a busy broker."""
        return self.options.timeout_s * self.options.retries

    def _request_once(
        self, method: str, url: str, body: Any, frame: bool
    ) -> tuple[int, float, bytes]:
        """Send a request once. Returns (status, seconds to wait before another attempt, body)."""
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
    """One connection for each server; each is opened at its first use."""
    return [Connection(server, options, **changes) for server in parse_servers(servers)]


def backoff_s(attempt: int) -> float:
    """How long to wait after this attempt; random, so that many clients do not retry at once."""
    longest: float = min(limits.RETRY_S * 2 ** (attempt - 1), limits.RETRY_S_MAX)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311


def retry_after_s(text: str | None) -> float:
    """The seconds of a Retry-After header, which may have a fraction; RETRY_S if it is invalid."""
    try:
        seconds = float(text or "")
    except ValueError:
        return limits.RETRY_S
    return min(max(seconds, limits.RETRY_S), limits.BUSY_S_MAX)


def refusal(status: int, path: str, body: bytes, server: str) -> Refused:
    """The exception for a response with an error status."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    text = f"{server}: {path}: {answer.pop('error', '') or NOT_BULK.format(status=status)}"
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


def _queries_for(names: Iterable[str]) -> Iterator[dict[str, str]]:
    """Queries for these topics, each short enough for the first line of a request."""
    plain: list[str] = []
    special: list[str] = []  # names that cannot be in a list separated by commas
    for name in names:
        (special if "," in name or name != name.strip() else plain).append(name)
    for group in _groups([re.escape(name) for name in special], limits.PATTERN_CHARS):
        yield {"pattern": "|".join(group)}
    for group in _groups(plain, limits.NAMES_BYTES):
        yield {"subscribe": ",".join(group)}
    if not plain and not special:
        yield {"subscribe": ""}


def _groups(words: Sequence[str], bytes_max: int) -> Iterator[Sequence[str]]:
    """The words in order, in groups of at most `bytes_max` bytes of a URL, or of one word."""
    first = size = 0
    for at, word in enumerate(words):
        size += len(quote_plus(word)) + len("%2C")
        if size > bytes_max and at > first:
            yield words[first:at]
            first, size = at, len(quote_plus(word)) + len("%2C")
    if words:
        yield words[first:]
