"""From a request to its answer: the verbs, the order of common checks, counters.

A verb is a function of a Call. It returns the parts of the answer, or an awaitable of them if it
waits for the disk: later requests of the account then wait for it, so answers stay in order.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
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

_LEVEL: Final = b"nats-required-api-level"


@dataclass(frozen=True, slots=True)
class Verb:
    """One kind of request."""

    kind: str  # of the answer: stream_create
    handler: Handler
    names: tuple[int, ...] = (1,)  # how many tokens may follow the verb
    rest: bool = False  # more tokens may follow the last name: a filter
    on_error: Parts = ()  # the parts of an answer with an error
    needs_cluster: bool = False  # refused on one server, whatever the request
    empty: bool = False  # a body is an error
    common: bool = True  # level and account are checked
    reads_first: bool = False  # the body is checked before level and account
    silent: frozenset[int] = frozenset()  # errors that are not answered
    counted: bool = True  # a success counts as a request, and is audited


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
        """The decoded body, which must be there: 10003, 10025."""
        if not self.request.data:
            raise ApiError(errors.BAD_REQUEST)
        return decode(self.request.data, kind, strict=self.account.strict)

    def optional(self, kind: type[T]) -> T:
        """The decoded body if it begins like JSON, else the defaults: 10025."""
        if not is_json(self.request.data):
            return kind()
        return decode(self.request.data, kind, strict=self.account.strict)

    def body(self, kind: type[T]) -> T:
        """The decoded body, or the defaults if it is blank: 10025."""
        if not self.request.data.strip():
            return kind()
        return decode(self.request.data, kind, strict=self.account.strict)

    def may_receive(self, subject: str) -> bool:
        """Whether the requester may be sent messages to this subject."""
        return may_receive(self.account.account, self.request.session, subject.encode())

    def client(self) -> dict[str, Any]:
        """The requester, for advisories."""
        return self.account.context.client_info(self.request.session, self.account.name)

    def check_common(self) -> None:
        """The level that the request requires, and whether its account has JetStream."""
        check_level(self.request.headers)
        if not self.account.enabled:
            raise ApiError(errors.NOT_ENABLED_FOR_ACCOUNT)


def check_level(headers: bytes) -> None:
    """10185 if the header asks for a level that this server does not have."""
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
    """The first value of a header, whose name is in lower case; None without it."""
    for line in headers.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon and key.strip().lower() == name:
            return value.strip()
    return None


class Dispatcher:
    """Answers the requests of one account, in order."""

    def __init__(
        self,
        account: JetStreamAccount,
        sink: ApiSink,
        purge: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`purge`: deletes all streams of an account by its name, for the system account."""
        self.account = account
        self.sink = sink
        self.purge = purge
        self.task: asyncio.Task[None] | None = None

    def handle(self, request: Request) -> None:
        """Answer one request, now or after what it waits for."""
        call = self._call(request)
        if call is None:
            return  # unknown verbs are not answered
        try:
            found = self._start(call)
        except ApiError as problem:
            self._refuse(call, problem)
        except Exception as problem:
            self._failed(call, problem)
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
                    verb = _OF_SYSTEM
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
            self._failed(call, problem)
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
        if problem.counted:
            self.account.count(error=True)
        self._send(call, body, counted=True)

    def _failed(self, call: Call, problem: Exception) -> None:
        # its text says all about a full or broken disk
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
        """Report requests that were dropped because too many wait."""
        log.warning(
            "account %s: %d API requests were dropped, others wait", self.account.name, dropped
        )
        self.account.limit_reached(dropped)

    async def close(self) -> None:
        """Wait for the request in progress."""
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)


def _no_account(_call: Call) -> Parts:
    """Never called: the system account has no JetStream."""
    return ()


_OF_SYSTEM: Final = Verb("system", _no_account)  # what the answer is called there

# --- the verbs -----------------------------------------------------------------------------------

_MODULES: Final = (
    "broker.protocols.jetstream.api.verbs",
    "broker.protocols.jetstream.consumers.verbs",
)
_VERBS: dict[str, Verb] = {}


def find_verb(name: str) -> Verb | None:
    """The verb of this name; the modules are imported for the first request."""
    if not _VERBS:
        for module in _MODULES:
            try:
                _VERBS.update(import_module(module).VERBS)
            except ModuleNotFoundError:
                continue
    return _VERBS.get(name)
