"""What is asked of the system account, and how it is answered.

A request without a reply subject is not answered; one that is meant for other servers neither. A
page is only built when somebody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from broker.protocols.nats import limits
from broker.protocols.nats.monitoring.options import PageError
from broker.protocols.nats.system import errors
from broker.protocols.nats.system import options as system_options
from broker.protocols.nats.system.count import count_subscribers
from broker.protocols.nats.system.envelope import (
    accepted_encoding,
    content_encoding,
    encode,
    pack,
)
from broker.protocols.nats.system.events import Events
from broker.protocols.nats.system.facts import expvarz, profilez, user_info
from broker.protocols.nats.system.go_json import BadBody, Shape, decode
from broker.protocols.nats.system_view import (
    AccountView,
    Json,
    Message,
    Station,
)

Handler = Callable[[AccountView, Message], None]
_BAD_REQUEST: Final = 400
_FAILED: Final = 500
_PING: Final = "PING"


@dataclass(slots=True)
class Actions:
    """What requests can make the server do; None: it cannot. Texts are what the requester reads."""

    reload: Callable[[], Awaitable[str]] | None = None  # "" or what is wrong
    kick: Callable[[int], str] | None = None  # client id -> "" or what is wrong
    lame_duck: Callable[[int], str] | None = None


class Requests:
    """Answers them for one server."""

    def __init__(self, station: Station, events: Events, actions: Actions) -> None:
        self.server = station.server
        self.envelope = station.envelope
        self.pages = station.pages
        self.events = events
        self.actions = actions
        self._tasks: set[asyncio.Future[None]] = set()

    def handlers(self) -> dict[str, Handler]:
        """By subject, of the system account."""
        found: dict[str, Handler] = {"$SYS.REQ.SERVER.PING": self._statsz}
        per_server: dict[str, Handler] = {
            "IDZ": self._idz,
            "STATSZ": self._statsz,
            "PROFILEZ": self._profilez,
            "EXPVARZ": self._expvarz,
        }
        for name in system_options.PAGES:
            per_server[name] = partial(self._page, name)
        me = self.envelope.who.server_id
        for name, handler in per_server.items():
            found[f"$SYS.REQ.SERVER.{_PING}.{name}"] = handler
            found[f"$SYS.REQ.SERVER.{me}.{name}"] = handler
        found[f"$SYS.REQ.SERVER.{me}.RELOAD"] = self._reload
        found[f"$SYS.REQ.SERVER.{me}.KICK"] = partial(self._act, "kick")
        found[f"$SYS.REQ.SERVER.{me}.LDM"] = partial(self._act, "lame_duck")
        for name in system_options.ACCOUNT_PAGES:
            found[f"$SYS.REQ.ACCOUNT.*.{name}"] = partial(self._account_page, name)
        found["$SYS.REQ.ACCOUNT.*.INFO"] = self._account_info
        found["$SYS.REQ.ACCOUNT.*.STATZ"] = self._account_statz
        found["$SYS.REQ.ACCOUNT.*.CONNS"] = self._account_conns
        found[f"$SYS.REQ.ACCOUNT.{_PING}.STATZ"] = self._all_statz
        found["$SYS.REQ.ACCOUNT.NSUBS"] = self._count_asked_by_server
        found["$SYS.REQ.USER.*.INFO"] = self._nobody
        found["$SYS.REQ.USER.INFO"] = self._user_info
        found["$SYS.DEBUG.SUBSCRIBERS"] = self._subscribers
        return found

    def imports(self, account: AccountView) -> dict[str, Handler]:
        """By subject, what every other account may ask about itself."""
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

    def respond(self, account: AccountView, reply: bytes, **parts: Any) -> None:
        """`data=` or `error=` in an envelope, to whoever waits at `reply`."""
        if not reply:
            return
        self._send(account, reply, encode({"server": self.envelope.server(), **parts}), "")

    def _send(self, account: AccountView, reply: bytes, body: bytes, encoding: str) -> None:
        if encoding in ("", "identity") or len(body) <= limits.NATS_PACK_INLINE:
            account.publish(reply, pack(body, encoding), headers=content_encoding(encoding))
            return
        self._later(self._send_packed(account, reply, body, encoding))

    async def _send_packed(
        self, account: AccountView, reply: bytes, body: bytes, encoding: str
    ) -> None:
        packed = await asyncio.to_thread(pack, body, encoding)
        account.publish(reply, packed, headers=content_encoding(encoding))

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, account: AccountView, reply: bytes, code: int, text: str, **data: Any) -> None:
        self.respond(account, reply, **data, error={"code": code, "description": text})

    def _options(self, account: AccountView, message: Message, shape: Shape) -> Json | None:
        """What the body says; None when it is wrong, which is answered, or not for us."""
        try:
            if len(message.data) > limits.NATS_SYSTEM_BODY:
                raise BadBody(errors.LONG_REQUEST)
            options = decode(message.data, shape)
        except BadBody as error:
            self._fail(account, message.reply, _BAD_REQUEST, str(error))
            return None
        return options if self._is_meant(options) else None

    def _is_meant(self, options: Json) -> bool:
        who = self.envelope.who
        exact = options["exact_match"]
        for asked, ours in (
            (options["server_name"], who.name),
            (options["host"], who.host),
            (options["cluster"], who.cluster),
        ):
            if asked and (asked != ours if exact else asked not in ours):
                return False
        if any(tag.strip().lower() not in self.envelope.tags for tag in options["tags"]):
            return False
        return options["domain"] in ("", who.domain)

    def _answer(
        self,
        account: AccountView,
        message: Message,
        shape: Shape,
        build: Callable[[Json], Json | None],
    ) -> None:
        """What `build` makes of the options; None: no answer."""
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

    # --- of this server ----------------------------------------------------------------------

    def _page(self, name: str, account: AccountView, message: Message) -> None:
        shape = system_options.PAGES[name]
        self._answer(account, message, shape, partial(self.pages.page, name))

    def _statsz(self, account: AccountView, message: Message) -> None:
        if not message.reply:  # then everybody hears it
            if self._options(account, message, system_options.STATSZ) is not None:
                self.events.send_statsz()
            return
        if not account.interest(message.reply):
            return
        if self._options(account, message, system_options.STATSZ) is not None:
            self._send(account, message.reply, encode(self.events.statsz()), "")

    def _idz(self, account: AccountView, message: Message) -> None:
        if message.reply:
            who = self.envelope.who
            block = {"name": who.name, "host": who.host, "id": who.server_id}
            self._send(account, message.reply, encode(block), "")

    def _profilez(self, account: AccountView, message: Message) -> None:
        self._answer(account, message, system_options.PROFILEZ, profilez)

    def _expvarz(self, account: AccountView, message: Message) -> None:
        self._answer(account, message, system_options.EXPVARZ, expvarz)

    def _reload(self, account: AccountView, message: Message) -> None:
        if not message.reply:
            return
        if self._options(account, message, system_options.FILTERS_ONLY) is not None:
            self._later(self._reload_now(account, message.reply))

    async def _reload_now(self, account: AccountView, reply: bytes) -> None:
        wrong = errors.RELOAD_NO_FILE
        if self.actions.reload is not None:
            wrong = await self.actions.reload()
        if wrong:
            self._fail(account, reply, _FAILED, wrong)
        else:
            self.respond(account, reply)

    def _act(self, what: str, account: AccountView, message: Message) -> None:
        """KICK and LDM of one client."""
        if not message.reply or not message.data:
            return
        try:
            client_id = decode(message.data, system_options.CLIENT_ID["KICK"])["cid"]
        except BadBody:
            return
        if self._options(account, message, system_options.FILTERS_ONLY) is None:
            return
        act: Callable[[int], str] | None = getattr(self.actions, what)
        wrong = act(client_id) if act is not None else errors.LAME_DUCK_UNABLE
        if wrong:
            self._fail(account, message.reply, _FAILED, wrong)
        else:
            self.respond(account, message.reply)

    # --- of one account ------------------------------------------------------------------------

    def _account_page(
        self, page: str, account: AccountView, message: Message, *, name: str = ""
    ) -> None:
        """`name` is the account that the requester belongs to; else it is in the subject."""
        about = name or _account_of(message)

        def build(options: Json) -> Json:
            if page == "JSZ":
                raise PageError(errors.NO_JETSTREAM)
            options[system_options.ACCOUNT_PAGES[page]] = about
            if page == "SUBSZ":
                options["subscriptions"] = True
            return self.pages.page(page, options)

        self._answer(account, message, system_options.PAGES[page], build)

    def _account_info(self, account: AccountView, message: Message) -> None:
        def build(_options: Json) -> Json:
            return self.pages.page("INFO", {"account": _account_of(message)})

        self._answer(account, message, system_options.INFO, build)

    def _account_statz(self, account: AccountView, message: Message, *, name: str = "") -> None:
        about = name or _account_of(message)
        if about == _PING and not name:
            return  # another listener has it

        def build(options: Json) -> Json | None:
            options["accounts"] = (about,)
            return self._statz_page(options)

        self._answer(account, message, system_options.ACCSTATZ, build)

    def _all_statz(self, account: AccountView, message: Message) -> None:
        self._answer(account, message, system_options.ACCSTATZ, self._statz_page)

    def _statz_page(self, options: Json) -> Json | None:
        page = self.pages.page("ACCSTATZ", options)
        return page if page["account_statz"] or options["include_unused"] else None

    def _account_conns(self, account: AccountView, message: Message) -> None:
        """Servers ask this; the answer is the event."""
        about = self.server.accounts.get(_account_of(message))
        if not message.reply or about is None or not (about.sessions or about.leafs):
            return
        try:
            options = decode(message.data, Shape("accNumConnsReq", "", {"acc": "string"}, ""))
        except BadBody:
            return
        if options["acc"] in ("", about.name):
            event = self.events.account_event(about)
            event["server"] = self.envelope.server()
            self._send(account, message.reply, encode(event), "")

    def _nobody(self, account: AccountView, message: Message) -> None:
        """Asked past the subject that says who asks."""
        if message.reply:
            self.respond(account, message.reply, data={"user": "", "account": ""})

    def _user_info(self, account: AccountView, message: Message) -> None:
        session = message.session
        if message.reply and session is not None:
            self.respond(account, message.reply, data=user_info(session, account.name))

    # --- who subscribes ------------------------------------------------------------------------

    def _subscribers(self, account: AccountView, message: Message) -> None:
        """How many clients listen to the subject, or in the queue group, that the body names."""
        if not message.reply:
            return
        about = account
        if message.session is not None and message.session.account is not None:
            about = message.session.account  # it came by an import
        subject, _, queue = message.data.strip().partition(b" ")
        count = count_subscribers(about, subject, queue.split(b" ")[0])
        self._send(account, message.reply, b"%d" % count, "")

    def _count_asked_by_server(self, account: AccountView, message: Message) -> None:
        try:
            shape = Shape("accNumSubsReq", "", {"acc": "string", "subject": "string"}, "")
            options = decode(message.data, shape)
        except BadBody:
            return
        about = self.server.accounts.get(options["acc"])
        if message.reply and about is not None and (about.sessions or about.leafs):
            count = count_subscribers(about, options["subject"].encode(), b"")
            self._send(account, message.reply, b"%d" % count, "")


def _account_of(message: Message) -> str:
    return message.subject.split(b".")[3].decode("utf-8", "replace")
