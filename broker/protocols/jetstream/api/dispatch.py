"""Calls the handler of a request and sends the answer: verbs, common checks, counters.

A handler is a function of a Call. It returns the parts of the answer, or an awaitable of them if it
waits for the disk: later requests of the account then wait for it, so answers are in order.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker.base.gotext import parse_int
from broker.base.values import dataclass
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.api.decode import decode, is_empty, is_json
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import GoStruct, Initiated, answer
from broker.protocols.nats.accounts.rights import may_receive

if TYPE_CHECKING:
    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.api.sink import ApiSink, Request

log = logging.getLogger("broker.jetstream")

T = TypeVar("T", bound=GoStruct)
Parts = tuple[object, ...]
Handler = Callable[["Call"], "Parts | Awaitable[Parts | None] | None"]

_LEVEL: Final = b"Nats-Required-Api-Level"


@dataclass(frozen=True, slots=True)
class Verb:
    """One kind of request."""

    kind: str  # type of the answer, such as stream_create
    handler: Handler
    names: tuple[int, ...] = (1,)  # allowed numbers of tokens after the verb
    rest: bool = False  # a filter may follow them: any number of tokens
    on_error: Parts = ()  # the parts of an answer with an error
    needs_cluster: bool = False  # always refused: this server is not in a cluster
    empty: bool = False  # a body is an error
    common: bool = True  # the API level and the account are checked
    reads_first: bool = False  # the handler decodes the body first, and makes these checks itself
    silent: frozenset[int] = frozenset()  # error codes that are not answered
    counted: bool = True  # a success is counted as a request, and an audit advisory is sent
    errors_counted: bool = True  # the same for an error


_PURGE: Final = ("ACCOUNT", "PURGE")


class Call:
    """One request with its account and the tokens after its verb."""

    __slots__ = ("account", "request", "tokens", "verb")

    def __init__(
        self, account: JetStreamAccount, request: Request, verb: Verb, tokens: list[str]
    ) -> None:
        self.account = account
        self.request = request
        self.verb = verb
        self.tokens = tokens

    @property
    def stream_name(self) -> str:
        """The first token after the verb."""
        return self.tokens[0]

    def required(self, kind: type[T]) -> T:
        """The decoded body. ApiError: 10003 it is empty, 10025."""
        if is_empty(self.request.data):
            raise ApiError(errors.BAD_REQUEST)
        return decode(self.request.data, kind, strict=self.account.strict)

    def optional(self, kind: type[T]) -> T:
        """The decoded body if it begins like JSON, else the defaults. ApiError 10025."""
        if not is_json(self.request.data):
            return kind()
        return decode(self.request.data, kind, strict=self.account.strict)

    def body(self, kind: type[T]) -> T:
        """The decoded body, or the defaults if it is blank. ApiError 10025."""
        if not self.request.data.strip():
            return kind()
        return decode(self.request.data, kind, strict=self.account.strict)

    def may_receive(self, subject: str) -> bool:
        """Whether the client has permission to receive messages on this subject."""
        return may_receive(self.account.account, self.request.session, subject.encode())

    def client(self) -> dict[str, Any]:
        """The client of the request, for advisories."""
        return self.account.context.client_info(self.request.session, self.account.name)

    def check_common(self) -> None:
        """Check the API level that the request requires, and that its account has JetStream.
        ApiError 10185, 10039."""
        check_level(self.request.headers)
        if not self.account.enabled:
            raise ApiError(errors.NOT_ENABLED_FOR_ACCOUNT)


def check_level(headers: bytes) -> None:
    """ApiError 10185: the headers require an API level that this server does not have."""
    value = header(headers, _LEVEL)
    if not value:
        return
    try:
        level = parse_int(value.decode("latin-1"))
    except ValueError:
        raise ApiError(errors.REQUIRED_API_LEVEL) from None
    if level > limits.JS_API_LEVEL:
        raise ApiError(errors.REQUIRED_API_LEVEL)


def header(headers: bytes, name: bytes) -> bytes | None:
    """The first value of a header of exactly this name; None: there is none."""
    for line in headers.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon and key == name:
            return value.strip()
    return None


class Dispatcher:
    """Answers the requests of one account, in order."""

    def __init__(
        self,
        account: JetStreamAccount,
        sink: ApiSink,
        purge: Callable[[str], Awaitable[None]] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`purge`: deletes all streams of an account, by its name; only the system account may
        request it."""
        self.account = account
        self.sink = sink
        self.purge = purge
        self.task: asyncio.Task[None] | None = None
        self._now_ns = now_ns
        self._dropped = 0  # requests, since the last log line about them
        self._logged_ns = 0  # time of that line; 0 = there was none

    def handle(self, request: Request) -> None:
        """Answer one request, now or when its handler has finished."""
        call = self._call(request)
        if call is None:
            return  # as nats-server: unknown verbs are not answered
        try:
            found = self._start(call)
        except ApiError as problem:
            self._refuse(call, problem)
        except Exception as problem:
            self._answer_failure(call, problem)
        else:
            if inspect.isawaitable(found):
                self.sink.busy = True
                self.task = asyncio.ensure_future(self._wait(call, found))
            else:
                self._answer(call, found)

    def _call(self, request: Request) -> Call | None:
        tokens = request.verb.decode("utf-8", "surrogateescape").split(".")
        for size in (3, 2, 1):
            verb = find_verb(".".join(tokens[:size]))
            names = tokens[size:]
            if verb is None or len(tokens) < size:
                continue
            fits = len(names) in verb.names or (verb.rest and len(names) > max(verb.names))
            if fits and all(names):
                if self.account.is_system and verb.kind != "account_info":
                    verb = _SYSTEM_VERB
                return Call(self.account, request, verb, names)
        return self._system_call(request, tokens)

    def _system_call(self, request: Request, tokens: list[str]) -> Call | None:
        """A request that only the system account may make."""
        if not self.account.is_system or self.purge is None or len(tokens) != len(_PURGE) + 1:
            return None
        if tuple(tokens[: len(_PURGE)]) != _PURGE:
            return None
        purge = self.purge

        async def handle(call: Call) -> Parts:
            await purge(call.tokens[0])
            return (Initiated(initiated=True),)

        return Call(self.account, request, Verb("account_purge", handle, common=False), tokens[2:])

    def _start(self, call: Call) -> Any:
        verb = call.verb
        if verb.needs_cluster:
            raise ApiError(errors.CLUSTER_REQUIRED)
        if verb.common and not verb.reads_first:
            call.check_common()
        if verb.empty and not is_empty(call.request.data):
            raise ApiError(errors.NOT_EMPTY_REQUEST)
        return verb.handler(call)

    async def _wait(self, call: Call, found: Awaitable[Parts | None]) -> None:
        try:
            self._answer(call, await found)
        except ApiError as problem:
            self._refuse(call, problem)
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            self._answer_failure(call, problem)
        finally:
            self.task = None
            self.sink.resume()

    # --- answers

    def _answer(self, call: Call, parts: Parts | None) -> None:
        if parts is not None:
            self._send(call, answer(call.verb.kind, *parts), counted=call.verb.counted)

    def _refuse(self, call: Call, problem: ApiError) -> None:
        if problem.err_code in call.verb.silent:
            return
        body = answer(call.verb.kind, *call.verb.on_error, error=problem)
        if problem.counted and call.verb.errors_counted:
            self.account.count(error=True)
        self._send(call, body, counted=call.verb.errors_counted)

    def _answer_failure(self, call: Call, problem: Exception) -> None:
        # The traceback of an OSError adds nothing to its text.
        trace = None if isinstance(problem, OSError) else problem
        log.error("request %r: %s", call.request.subject, problem, exc_info=trace)
        self._refuse(call, ApiError(errors.STREAM_GENERAL, err=str(problem)))

    def _send(self, call: Call, body: bytes, *, counted: bool) -> None:
        request = call.request
        if counted:
            self.account.count()
        if request.reply:
            self.account.publish(request.reply, body)
        if counted:
            self.account.audit(request, body)

    def overflow(self, dropped: int) -> None:
        """Report requests that were dropped because too many wait; in the log only now and then,
        because a client can cause it many times a second."""
        self.account.limit_reached(dropped)
        self._dropped += dropped
        now_ns = self._now_ns()
        if self._logged_ns and now_ns < self._logged_ns + limits.JS_DROPPED_APART:
            return
        count, self._dropped, self._logged_ns = self._dropped, 0, now_ns
        log.warning(
            "account %s: %d API requests were dropped, too many wait", self.account.name, count
        )

    async def close(self) -> None:
        """Wait until the request in progress has been answered."""
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)


def _no_account(_call: Call) -> Parts:
    """Never called: the system account has no JetStream."""
    return ()


_SYSTEM_VERB: Final = Verb("system", _no_account)  # its kind is the type of the error answer

# --- the verbs -----------------------------------------------------------------------------------

_MODULES: Final = (
    "broker.protocols.jetstream.api.verbs",
    "broker.protocols.jetstream.consumers.verbs",
)
_VERBS: dict[str, Verb] = {}


def find_verb(name: str) -> Verb | None:
    """The verb of this name; None: it is unknown. The first call imports the verbs' modules."""
    if not _VERBS:
        found: dict[str, Verb] = {}
        for module in _MODULES:
            try:
                found.update(import_module(module).VERBS)
            except ModuleNotFoundError:
                continue
        _VERBS.update(found)  # all at once: several threads may import them
    return _VERBS.get(name)
