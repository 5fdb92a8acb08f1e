"""A session with the system account of Twinwire or the original, and the shape of answers.

A shape keeps the names, their order and the types of a JSON text, and the words that tools compare;
values that differ from run to run are replaced with their type.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any, Final

import nats
import snappy  # type: ignore[import-untyped]
from nats.aio.client import Client
from nats.aio.msg import Msg

WAIT_S = 10.0
CONFIG: Final = """
listen: "127.0.0.1:-1"
server_name: twin
server_tags: ["az:1", "Big"]
accounts {
  SYS { users: [{user: sys, password: s}], exports: [{service: "$SYS.DEBUG.SUBSCRIBERS"}] }
  A {
    users: [
      {user: a, password: p}
      {user: lim, password: p, permissions: {
        publish: {allow: ["foo.>", "$SYS.REQ.USER.INFO"], deny: "foo.bar"}
        subscribe: ["_INBOX.>", "q.* grp"]
        allow_responses: true
      }}
    ]
    imports: [{service: {account: SYS, subject: "$SYS.DEBUG.SUBSCRIBERS"}}]
  }
  B { users: [{user: b, password: p}] }
}
system_account: SYS
"""

PAGES: Final = (
    "VARZ", "SUBSZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ", "HEALTHZ",
)  # fmt: skip

# Words, not values of the moment.
_KEPT: Final = {
    "type", "kind", "client_type", "acc", "account", "account_name", "user", "name", "reason",
    "description", "code", "status", "status_code", "error", "system_account", "tags", "jetstream",
    "flags", "disabled", "publish", "subscribe", "responses", "conns", "leafnodes", "total_conns",
    "offset", "limit", "num_connections", "authorized_user", "server_name",
    "response_type", "proto", "auth_required", "is_system", "expired", "complete",
}  # fmt: skip
# What only Go can say, or what depends on when it is asked.
_OPAQUE: Final = {"memstats", "cmdline", "profile"}
_OMITTED: Final = {"rtt", "idle", "twinwire"}


def shape(value: Any, key: str = "") -> Any:
    """What of a JSON value is the same in each run."""
    if key in _OPAQUE:
        return "opaque"
    if isinstance(value, dict):
        return {k: shape(v, k) for k, v in value.items() if k not in _OMITTED}
    if key in _KEPT or value is None:
        return value
    if isinstance(value, list):
        return _shapes(value, key)
    return {bool: "bool", str: "text", int: "number", float: "number"}[type(value)]


def _shapes(found: list[Any], key: str) -> list[Any]:
    """Of all where the number is known, and in one order: the original's is another each time."""
    if key in {"exports", "imports"}:
        return sorted(found, key=json.dumps)
    if key == "account_statz":
        return [shape(each) for each in sorted(found, key=lambda stat: str(stat["acc"]))]
    return [shape(each) for each in found[:1]]


def plain(message: Msg) -> bytes:
    """The body without its compression."""
    encoding = (message.headers or {}).get("Content-Encoding", "")
    if encoding == "gzip":
        return gzip.decompress(message.data)
    if encoding == "snappy":
        return bytes(snappy.StreamDecompressor().decompress(message.data))
    return message.data


class SystemSession:
    """Plays the session; `found` is what came back, by step."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.found: dict[str, Any] = {}
        self.events: asyncio.Queue[Msg] = asyncio.Queue()
        self.id = ""

    async def connect(self, user: str, password: str = "p", name: str = "") -> Client:
        async def quiet(_error: Exception) -> None:
            pass

        host, port = self.address
        return await nats.connect(
            f"nats://{user}:{password}@{host}:{port}",
            name=name or None,
            allow_reconnect=False,
            error_cb=quiet,
        )

    async def ask(self, step: str, client: Client, subject: str, body: str = "", **h: str) -> None:
        """One request and its one answer."""
        headers = {"Accept-Encoding": h["accept"]} if "accept" in h else None
        message = await client.request(
            subject.replace("{id}", self.id), body.encode(), timeout=WAIT_S, headers=headers
        )
        self._note(step, message)

    def _note(self, step: str, message: Msg) -> None:
        entry = {"headers": dict(message.headers)} if message.headers else {}
        answer = json.loads(plain(message))
        kept = answer if isinstance(answer, int) else shape(answer)
        self.found[step] = entry | {"answer": kept}

    async def ask_in_vain(self, client: Client, subject: str, body: str = "") -> None:
        """A request that is not answered, which shows in the answer to the next."""
        inbox = client.new_inbox()
        silence = await client.subscribe(inbox)
        await client.publish(subject.replace("{id}", self.id), body.encode(), reply=inbox)
        await client.request("$SYS.REQ.SERVER.PING.IDZ", timeout=WAIT_S)
        while silence.pending_msgs:  # the 503 of no responders is not an answer
            message = await silence.next_msg()
            assert (message.headers or {}).get("Status") == "503", subject
        await silence.unsubscribe()

    async def hear(self, step: str, *subjects: str) -> None:
        """The events on these subjects, in any order, and no others before them."""
        waiting = [subject.replace("{id}", self.id) for subject in subjects]
        while waiting:
            message = await asyncio.wait_for(self.events.get(), WAIT_S)
            # nats-server 2.15 also reports the end of a client whose login failed
            if message.subject.endswith((".STATSZ", ".ACCOUNT.$G.DISCONNECT")):
                continue
            assert message.subject in waiting, (step, message.subject, message.data)
            waiting.remove(message.subject)
            shown = message.subject.replace(self.id, "{id}")
            self._note(f"{step}: {shown}", message)

    async def run(self) -> Mapping[str, Any]:
        sys = await self.connect("sys", "s")
        self.id = sys._server_info["server_id"]
        for subject in ("$SYS.ACCOUNT.>", "$SYS.SERVER.>"):
            await sys.subscribe(subject, cb=self.events.put)
        await sys.flush()
        await self._logins(sys)
        # Last: the original counts every connection again, and publishes it.
        await self.ask("RELOAD", sys, "$SYS.REQ.SERVER.{id}.RELOAD")
        await self.ask("RELOAD no JSON", sys, "$SYS.REQ.SERVER.{id}.RELOAD", "{")
        await sys.close()
        return self.found

    async def _logins(self, sys: Client) -> None:
        conns = ("$SYS.SERVER.ACCOUNT.A.CONNS", "$SYS.ACCOUNT.A.SERVER.CONNS")
        alice = await self.connect("a", name="alice")
        await self.hear("connect", *conns, "$SYS.ACCOUNT.A.CONNECT")
        for queue in ("", "g"):
            await alice.subscribe("foo.*", queue)
        await alice.flush()
        bob = await self.connect("lim")
        await self.hear("a second one", *conns, "$SYS.ACCOUNT.A.CONNECT")
        try:
            await self.connect("a", "wrong", name="eve")
        except nats.errors.Error as error:
            assert "Authorization" in str(error)  # noqa: PT017
        await self.hear("refused", "$SYS.SERVER.{id}.CLIENT.AUTH.ERR")
        await self._server_requests(sys)
        await self._account_requests(sys)
        await self._user_requests(sys, alice, bob)
        await self._actions(sys, alice, bob)
        await self.hear("kicked", *conns, "$SYS.ACCOUNT.A.DISCONNECT")
        await alice.close()
        await self.hear("left", *conns, "$SYS.ACCOUNT.A.DISCONNECT")

    async def _server_requests(self, sys: Client) -> None:
        ping, me = "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.{id}"
        await self.ask("PING", sys, ping)
        for name in (*PAGES, "IDZ", "STATSZ", "PROFILEZ", "EXPVARZ"):
            await self.ask(f"PING.{name}", sys, f"{ping}.{name}")
            await self.ask(f"id.{name}", sys, f"{me}.{name}")
        await self.ask("CONNZ with options", sys, f"{ping}.CONNZ", '{"auth":true,"LIMIT":1}')
        await self.ask("CONNZ of user", sys, f"{ping}.CONNZ", '{"auth":true,"user":"lim"}')
        await self.ask("CONNZ closed", sys, f"{ping}.CONNZ", '{"state":1,"auth":true}')
        await self.ask("CONNZ subs", sys, f"{ping}.CONNZ", '{"subscriptions":true}')
        await self.ask("CONNZ detail", sys, f"{ping}.CONNZ", '{"subscriptions_detail":true}')
        await self.ask("CONNZ wrong sort", sys, f"{ping}.CONNZ", '{"sort":"nope"}')
        await self.ask("CONNZ wrong type", sys, f"{ping}.CONNZ", '{"limit":"x"}')
        await self.ask("SUBSZ test", sys, f"{ping}.SUBSZ", '{"subscriptions":true,"test":"foo.b"}')
        await self.ask("SUBSZ wrong test", sys, f"{ping}.SUBSZ", '{"test":"foo.*"}')
        await self.ask("ACCOUNTZ A", sys, f"{ping}.ACCOUNTZ", '{"account":"A"}')
        await self.ask("ACCOUNTZ nobody", sys, f"{ping}.ACCOUNTZ", '{"account":"NOPE"}')
        for name in ("STATSZ", "VARZ", "HEALTHZ"):
            await self.ask(f"{name} no JSON", sys, f"{ping}.{name}", "{")
        filters = '{"server_name":"wi","host":"127","tags":["AZ:1","big"]}'
        await self.ask("meant", sys, f"{ping}.HEALTHZ", filters)
        for other in (
            '{"server_name":"TW"}',
            '{"tags":["x"]}',
            '{"cluster":"c"}',
            '{"domain":"d"}',
        ):
            await self.ask_in_vain(sys, f"{ping}.HEALTHZ", other)
        for encoding in ("gzip", "Snappy", "deflate"):
            await self.ask(f"in {encoding}", sys, f"{ping}.HEALTHZ", accept=encoding)
        await self.ask_in_vain(sys, f"{ping}.NOPE")
        await self.ask_in_vain(sys, "$SYS.REQ.SERVER.NOTHER.VARZ")

    async def _account_requests(self, sys: Client) -> None:
        for account in ("A", "B", "SYS"):
            for name in ["SUBSZ", "CONNZ", "LEAFZ", "JSZ", "INFO"]:
                subject = f"$SYS.REQ.ACCOUNT.{account}.{name}"
                await self.ask(f"{account}.{name}", sys, subject)
        for name in ("CONNS", "STATZ"):
            await self.ask(f"A.{name}", sys, f"$SYS.REQ.ACCOUNT.A.{name}")
            await self.ask_in_vain(sys, f"$SYS.REQ.ACCOUNT.B.{name}")
            await self.ask_in_vain(sys, f"$SYS.REQ.ACCOUNT.NOPE.{name}")
        await self.ask("B.STATZ", sys, "$SYS.REQ.ACCOUNT.B.STATZ", '{"include_unused":true}')
        await self.ask("NOPE.INFO", sys, "$SYS.REQ.ACCOUNT.NOPE.INFO")
        await self.ask_in_vain(sys, "$SYS.REQ.ACCOUNT.A.CONNS", '{"acc":"B"}')
        await self.ask("PING.STATZ", sys, "$SYS.REQ.ACCOUNT.PING.STATZ")
        asked = '{"acc":"A","subject":"foo.bar"}'
        await self.ask("NSUBS", sys, "$SYS.REQ.ACCOUNT.NSUBS", asked)

    async def _user_requests(self, sys: Client, alice: Client, bob: Client) -> None:
        for name, client in (("sys", sys), ("alice", alice), ("bob", bob)):
            await self.ask(f"INFO of {name}", client, "$SYS.REQ.USER.INFO")
        await self.ask("INFO of others", sys, "$SYS.REQ.USER.A.INFO")
        for name in ("ACCOUNT.PING.CONNZ", "ACCOUNT.PING.STATZ", "SERVER.PING.CONNZ"):
            await self.ask(f"A's {name}", alice, f"$SYS.REQ.{name}", '{"acc":"SYS","auth":true}')
        for subject in ("$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.USER.A.INFO"):
            try:
                await alice.request(subject, timeout=WAIT_S)
            except nats.errors.NoRespondersError:
                continue
            raise AssertionError(f"{subject} is answered")
        for body in ("", "foo.bar", "foo.bar g", "foo.* g", "nobody"):
            for name, client in (("sys", sys), ("alice", alice)):
                step = f"subscribers for {name} {body}"
                await self.ask(step, client, "$SYS.DEBUG.SUBSCRIBERS", body)

    async def _actions(self, sys: Client, alice: Client, bob: Client) -> None:
        me = "$SYS.REQ.SERVER.{id}"
        await self.ask("KICK nobody", sys, f"{me}.KICK", '{"cid":9999}')
        await self.ask("LDM nobody", sys, f"{me}.LDM", '{"cid":9999}')
        for name in ("KICK", "LDM"):
            await self.ask_in_vain(sys, f"{me}.{name}", '{"cid":"x"}')
            await self.ask_in_vain(sys, f"{me}.{name}")
        await self.ask("LDM", sys, f"{me}.LDM", json.dumps({"cid": alice.client_id}))
        await self.ask("KICK", sys, f"{me}.KICK", json.dumps({"cid": bob.client_id}))
