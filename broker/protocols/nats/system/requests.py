"""Requests to the system account, and their answers.

Requests without a reply subject, and those for other servers, are not answered. A page is only
built if the reply subject has a subscriber.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.base.gotext import go_quote
from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.protocols.nats import limits
from broker.protocols.nats.monitoring.closed import raw_user
from broker.protocols.nats.monitoring.options import PageError
from broker.protocols.nats.monitoring.process import resident_bytes
from broker.protocols.nats.system import errors
from broker.protocols.nats.system import options as system_options
from broker.protocols.nats.system.envelope import (
    Json,
    Station,
    accepted_encoding,
    content_encoding,
    encode,
    pack,
)
from broker.protocols.nats.system.events import Events
from broker.protocols.nats.system.go_json import BadBody, Shape, decode
from broker.protocols.nats.views import LocalAccount, Message
from broker.routing.local import shape, subscribers

if TYPE_CHECKING:
    from broker.protocols.nats.settings import Permissions, Rules
    from broker.protocols.nats.views import SessionView

Handler = Callable[[LocalAccount, Message], None]
_BAD_REQUEST: Final = 400
_FAILED: Final = 500
_PING: Final = "PING"
_WILDCARD: Final = 2  # see routing.local.shape


@dataclass(slots=True)
class Actions:
    """Actions of the server for requests; None: unavailable. Texts are for the requester."""

    reload: Callable[[], Awaitable[str]] | None = None  # returns an error, or ""
    kick: Callable[[int], str] | None = None  # client id -> an error, or ""
    lame_duck: Callable[[int], str] | None = None


class Requests:
    """Answers the requests of one server."""

    def __init__(self, station: Station, events: Events, actions: Actions) -> None:
        self.server = station.server
        self.envelope = station.envelope
        self.pages = station.pages
        self.events = events
        self.actions = actions
        self._tasks: set[asyncio.Future[None]] = set()

    def handlers(self) -> dict[str, Handler]:
        """The handlers of requests in the system account, by subject."""
        found: dict[str, Handler] = {"$SYS.REQ.SERVER.PING": self._statsz}
        per_server: dict[str, Handler] = {
            "IDZ": self._idz,
            "STATSZ": self._statsz,
            "PROFILEZ": self._profilez,
            "EXPVARZ": self._expvarz,
            # There are no queues between threads, and no Raft groups.
            "IPQUEUESZ": partial(self._empty, system_options.IPQUEUESZ),
            "RAFTZ": partial(self._empty, system_options.RAFTZ),
        }
        for name in system_options.PAGES:
            per_server[name] = partial(self._page, name)
        server_id = self.envelope.identity.server_id
        for name, handler in per_server.items():
            found[f"$SYS.REQ.SERVER.{_PING}.{name}"] = handler
            found[f"$SYS.REQ.SERVER.{server_id}.{name}"] = handler
        found[f"$SYS.REQ.SERVER.{server_id}.RELOAD"] = self._reload
        found[f"$SYS.REQ.SERVER.{server_id}.KICK"] = partial(self._act, "kick")
        found[f"$SYS.REQ.SERVER.{server_id}.LDM"] = partial(self._act, "lame_duck")
        for name in system_options.ACCOUNT_PAGES:
            found[f"$SYS.REQ.ACCOUNT.*.{name}"] = partial(self._account_page, name)
        found["$SYS.REQ.ACCOUNT.*.INFO"] = self._account_info
        found["$SYS.REQ.ACCOUNT.*.STATZ"] = self._account_statz
        found["$SYS.REQ.ACCOUNT.*.CONNS"] = self._account_conns
        found[f"$SYS.REQ.ACCOUNT.{_PING}.STATZ"] = self._all_statz
        found["$SYS.REQ.ACCOUNT.NSUBS"] = self._subscribers_for_server
        found["$SYS.REQ.USER.*.INFO"] = self._unknown_user
        found["$SYS.REQ.USER.INFO"] = self._user_info
        found["$SYS.DEBUG.SUBSCRIBERS"] = self._subscribers
        return found

    def imports(self, account: LocalAccount) -> dict[str, Handler]:
        """The handlers of requests of other accounts about themselves, by subject."""
        name = account.name
        connz = partial(self._account_page, "CONNZ", name=name)
        return {
            f"$SYS.REQ.ACCOUNT.{_PING}.CONNZ": connz,
            f"$SYS.REQ.SERVER.{_PING}.CONNZ": connz,
            f"$SYS.REQ.ACCOUNT.{_PING}.STATZ": partial(self._account_statz, name=name),
            "$SYS.REQ.USER.INFO": self._user_info,
        }

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    # --- answers ---------------------------------------------------------------------------

    def respond(self, account: LocalAccount, reply: bytes, **parts: Any) -> None:
        """Send `data=` or `error=` in an envelope to the subject `reply`."""
        if not reply:
            return
        self._send(account, reply, encode({"server": self.envelope.server(), **parts}), "")

    def _send(self, account: LocalAccount, reply: bytes, body: bytes, encoding: str) -> None:
        if encoding in ("", "identity") or len(body) <= limits.NATS_PACK_INLINE:
            account.publish(reply, pack(body, encoding), headers=content_encoding(encoding))
            return
        self._spawn(self._send_packed(account, reply, body, encoding))

    async def _send_packed(
        self, account: LocalAccount, reply: bytes, body: bytes, encoding: str
    ) -> None:
        packed = await asyncio.to_thread(pack, body, encoding)
        account.publish(reply, packed, headers=content_encoding(encoding))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, account: LocalAccount, reply: bytes, code: int, text: str, **data: Any) -> None:
        self.respond(account, reply, **data, error={"code": code, "description": text})

    def _options(self, account: LocalAccount, message: Message, shape: Shape) -> Json | None:
        """The options in the body; None if they are invalid (answered) or for other servers."""
        try:
            if len(message.data) > limits.NATS_SYSTEM_BODY:
                raise BadBody(errors.LONG_REQUEST)
            options = decode(message.data, shape)
        except BadBody as error:
            self._fail(account, message.reply, _BAD_REQUEST, str(error))
            return None
        return options if self._is_for_this_server(options) else None

    def _is_for_this_server(self, options: Json) -> bool:
        identity = self.envelope.identity
        exact = options["exact_match"]
        for pattern, value in (
            (options["server_name"], identity.name),
            (options["host"], identity.host),
            (options["cluster"], identity.cluster),
        ):
            if pattern and (pattern != value if exact else pattern not in value):
                return False
        if any(tag.strip().lower() not in self.envelope.tags for tag in options["tags"]):
            return False
        return options["domain"] in ("", identity.domain)

    def _answer(
        self,
        account: LocalAccount,
        message: Message,
        shape: Shape,
        build: Callable[[Json], Json | None],
    ) -> None:
        """Answer with the result of `build`; None: no answer."""
        if not message.reply or not account.interest(message.reply):
            return
        options = self._options(account, message, shape)
        if options is None:
            return
        try:
            data = build(options)
        except PageError as error:
            self._fail(account, message.reply, _FAILED, str(error), data=None)
            return
        if data is None:
            return
        body = encode({"server": self.envelope.server(), "data": data})
        self._send(account, message.reply, body, accepted_encoding(message.headers))

    # --- about this server ----------------------------------------------------------------------

    def _page(self, name: str, account: LocalAccount, message: Message) -> None:
        shape = system_options.PAGES[name]
        self._answer(account, message, shape, partial(self.pages.page, name))

    def _statsz(self, account: LocalAccount, message: Message) -> None:
        if not message.reply:  # without a reply: publish to all subscribers
            if self._options(account, message, system_options.STATSZ) is not None:
                self.events.send_statsz()
            return
        if not account.interest(message.reply):
            return
        if self._options(account, message, system_options.STATSZ) is not None:
            self._send(account, message.reply, encode(self.events.statsz()), "")

    def _idz(self, account: LocalAccount, message: Message) -> None:
        if message.reply:
            identity = self.envelope.identity
            block = {"name": identity.name, "host": identity.host, "id": identity.server_id}
            self._send(account, message.reply, encode(block), "")

    def _profilez(self, account: LocalAccount, message: Message) -> None:
        self._answer(account, message, system_options.PROFILEZ, profilez)

    def _expvarz(self, account: LocalAccount, message: Message) -> None:
        self._answer(account, message, system_options.EXPVARZ, expvarz)

    def _empty(self, shape: Shape, account: LocalAccount, message: Message) -> None:
        self._answer(account, message, shape, lambda _options: {})

    def _reload(self, account: LocalAccount, message: Message) -> None:
        if not message.reply:
            return
        if self._options(account, message, system_options.FILTERS_ONLY) is not None:
            self._spawn(self._reload_now(account, message.reply))

    async def _reload_now(self, account: LocalAccount, reply: bytes) -> None:
        problem = errors.RELOAD_NO_FILE
        if self.actions.reload is not None:
            problem = await self.actions.reload()
        if problem:
            self._fail(account, reply, _FAILED, problem)
        else:
            self.respond(account, reply)

    def _act(self, action: str, account: LocalAccount, message: Message) -> None:
        """KICK and LDM of one client."""
        if not message.reply or not message.data:
            return
        try:
            client_id = decode(message.data, system_options.CLIENT_ID["KICK"])["cid"]
        except BadBody:
            return
        if self._options(account, message, system_options.FILTERS_ONLY) is None:
            return
        act: Callable[[int], str] | None = getattr(self.actions, action)
        problem = act(client_id) if act is not None else errors.LAME_DUCK_UNABLE
        if problem:
            self._fail(account, message.reply, _FAILED, problem)
        else:
            self.respond(account, message.reply)

    # --- about one account ------------------------------------------------------------------------

    def _account_page(
        self, page: str, account: LocalAccount, message: Message, *, name: str = ""
    ) -> None:
        """`name`: the account of the requester; if empty, the account in the subject."""
        target = name or _account_of(message)

        def build(options: Json) -> Json:
            if page == "JSZ" and self.server.jetstream is None:
                raise PageError(errors.NO_JETSTREAM)
            options[system_options.ACCOUNT_PAGES[page]] = target
            if page == "SUBSZ":
                options["subscriptions"] = True
            return self.pages.page(page, options)

        self._answer(account, message, system_options.PAGES[page], build)

    def _account_info(self, account: LocalAccount, message: Message) -> None:
        def build(_options: Json) -> Json:
            return self.pages.page("INFO", {"account": _account_of(message)})

        self._answer(account, message, system_options.INFO, build)

    def _account_statz(self, account: LocalAccount, message: Message, *, name: str = "") -> None:
        target = name or _account_of(message)
        if target == _PING and not name:
            return  # handled by another subscription

        def build(options: Json) -> Json | None:
            options["accounts"] = (target,)
            return self._statz_page(options)

        self._answer(account, message, system_options.ACCSTATZ, build)

    def _all_statz(self, account: LocalAccount, message: Message) -> None:
        self._answer(account, message, system_options.ACCSTATZ, self._statz_page)

    def _statz_page(self, options: Json) -> Json | None:
        page = self.pages.page("ACCSTATZ", options)
        return page if page["account_statz"] or options["include_unused"] else None

    def _account_conns(self, account: LocalAccount, message: Message) -> None:
        """Answer a server with the account's event."""
        target = self.server.accounts.get(_account_of(message))
        if not message.reply or target is None or not (target.sessions or target.leafs):
            return
        try:
            options = decode(message.data, Shape("accNumConnsReq", "", {"acc": "string"}, ""))
        except BadBody:
            return
        if options["acc"] in ("", target.name):
            event = self.events.account_event(target)
            event["server"] = self.envelope.server()
            self._send(account, message.reply, encode(event), "")

    def _unknown_user(self, account: LocalAccount, message: Message) -> None:
        """Answer a request whose subject does not identify the requester."""
        if message.reply:
            self.respond(account, message.reply, data={"user": "", "account": ""})

    def _user_info(self, account: LocalAccount, message: Message) -> None:
        session = message.session
        if message.reply and session is not None:
            self.respond(account, message.reply, data=user_info(session, account.name))

    # --- subscribers ------------------------------------------------------------------------

    def _subscribers(self, account: LocalAccount, message: Message) -> None:
        """Count the subscribers of the subject, or of the queue group, in the body."""
        if not message.reply:
            return
        target = account
        if message.session is not None and message.session.account is not None:
            target = message.session.account  # the request crossed an import
        subject, _, queue = message.data.strip().partition(b" ")
        count = count_subscribers(target, subject, queue.split(b" ")[0])
        self._send(account, message.reply, b"%d" % count, "")

    def _subscribers_for_server(self, account: LocalAccount, message: Message) -> None:
        try:
            shape = Shape("accNumSubsReq", "", {"acc": "string", "subject": "string"}, "")
            options = decode(message.data, shape)
        except BadBody:
            return
        target = self.server.accounts.get(options["acc"])
        if message.reply and target is not None and (target.sessions or target.leafs):
            count = count_subscribers(target, options["subject"].encode(), b"")
            self._send(account, message.reply, b"%d" % count, "")


def _account_of(message: Message) -> str:
    return message.subject.split(b".")[3].decode("utf-8", "replace")


def user_info(session: SessionView, account: str) -> Json:
    """A client's identity and permissions."""
    identity = session.identity
    info: Json = {"user": raw_user(session), "account": account, "account_name": account}
    if identity is not None and identity.permissions is not None:
        info["permissions"] = _permissions(identity.permissions)
    if identity is not None and identity.expires_ns:
        seconds = (identity.expires_ns - time.time_ns()) / SECOND
        if int(seconds):
            info["expires"] = int(seconds) * SECOND
    return info


def _permissions(permissions: Permissions) -> Json:
    shown: Json = {
        "publish": _rules(permissions.publish),
        "subscribe": _rules(permissions.subscribe),
    }
    if permissions.responses is not None:
        responses = permissions.responses
        shown["responses"] = {"max": responses.max_msgs, "ttl": responses.expires_ns}
    return shown


def _rules(rules: Rules) -> Json:
    lists = {"allow": rules.allow or (), "deny": rules.deny}
    return {name: [rule.subject for rule in found] for name, found in lists.items() if found}


def expvarz(_options: Json) -> Json:
    """The variables that Go programs publish; the command line could contain secrets."""
    rss = resident_bytes()
    return {"memstats": {"Alloc": rss, "Sys": rss}, "cmdline": sys.argv[:1]}


def profilez(options: Json) -> Json:
    """Answer with the original's errors, because Go profiles do not exist here."""
    name, duration_ns = options["name"], options["duration"]
    text = errors.PROFILE_UNKNOWN.format(go_quote(name.encode("utf-8", "replace")))
    if not name:
        text = errors.PROFILE_NAME
    elif name == "cpu" and not 0 < duration_ns <= limits.NATS_PROFILE_MAX:
        text = errors.PROFILE_DURATION.format(f"{duration_ns / SECOND:g}s")
    return {"profile": None, "error": text}


def count_subscribers(account: LocalAccount, subject: bytes, queue: bytes) -> int:
    """The number of subscriptions of clients and leafs that match a message to the subject.

    With wildcards: those whose subject it covers. With a queue, only its members are counted.
    """
    if not subject:
        return 0
    if shape(subject) & _WILDCARD:
        found = [
            (group, sink)
            for subscribed, group, _, sink, *_ in account.router.listing()
            if covers(subject, subscribed)
        ]
    else:
        found = subscribers(account.router, subject)
    peers = {id(peer) for peer in (*account.sessions, *account.leafs)}
    return sum(id(sink) in peers and (not queue or queue == group) for group, sink in found)


def covers(pattern: bytes, subject: bytes) -> bool:
    """Whether every match of `subject` also matches `pattern`."""
    pattern_tokens, subject_tokens = pattern.split(b"."), subject.split(b".")
    for at, token in enumerate(pattern_tokens):
        if at >= len(subject_tokens):
            return False
        if token == b">" and at == len(pattern_tokens) - 1:
            return True
        if subject_tokens[at] == b">" and at == len(subject_tokens) - 1:
            return False
        if token not in (b"*", subject_tokens[at]):
            return False
    return len(pattern_tokens) == len(subject_tokens)
