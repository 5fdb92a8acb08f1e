"""Requests of clients other than publishes: connect, ping, subscribe, unsubscribe, close.

Imported for the first of them: importing protobuf takes a tenth of what a start takes in all.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from broker.protocols.access import READ
from broker.protocols.stan import errors, limits
from broker.protocols.stan import stan_pb2 as pb
from broker.protocols.stan.channels import reason_of
from broker.protocols.stan.config import is_valid_channel
from broker.protocols.stan.publish import Client, RefusedError
from broker.protocols.stan.store import ClientRecord
from broker.protocols.stan.subscriptions import SearchNeededError, SubscribeRequest, check_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.stan.channels import Channels
    from broker.protocols.stan.clients import Clients
    from broker.protocols.stan.config import Subjects
    from broker.protocols.stan.publish import Request, Service, Subscription
    from broker.protocols.stan.store import Done
    from broker.protocols.stan.subscriptions import Subscriptions
    from broker.runtime.interfaces import Session

log = logging.getLogger("broker.stan")

M = TypeVar("M", bound=Message)
PROTOCOL = 1  # connID and pings


class Requests:
    """Handles the requests of one service."""

    def __init__(
        self,
        subjects: Subjects,
        service: Service,
        clients: Clients,
        channels: Channels,
        subscriptions: Subscriptions,
    ) -> None:
        self.subjects = subjects
        self.service = service
        self.clients = clients
        self.channels = channels
        self.subscriptions = subscriptions
        self.tasks: set[asyncio.Task[None]] = set()  # running searches
        self._own_subjects = tuple(f"{each}." for each in vars(subjects).values())
        self._handlers: dict[str, Callable[[Request], None]] = {
            "connect": self._connect,
            "ping": self._ping,
            "subscribe": self._subscribe,
            "unsubscribe": partial(self._leave, erase=True),
            "close_subscription": partial(self._leave, erase=False),
            "close": self._close,
        }

    def handle(self, request: Request) -> None:
        """Handle one request of this turn."""
        try:
            if request.kind == "reply":
                self.clients.answered(request.subject)
            else:
                self._handlers[request.kind](request)
        except Exception:
            log.exception("a request on %r", request.subject)

    # --- rights

    def _may_use_inbox(self, session: Session | None, inbox: str) -> bool:
        """Whether the requesting client may receive messages on this subject."""
        service = self.service
        if session is None or f"{inbox}.".startswith(self._own_subjects):
            return False
        entry = service.engine.log(inbox)
        if self.channels.get(inbox) is not None or (entry is not None and entry.hears_live):
            return False  # the subject belongs to a log, not to a client
        return service.access.may_use_inbox(session, service.router, inbox)

    def _is_own(self, session: Session | None, client: Client) -> bool:
        """Whether the client belongs to the requesting user."""
        return session is not None and self.service.access.is_own(session, client.owner)

    def _own(self, session: Session | None, client_id: str) -> Client:
        """The client of that id, if it belongs to the requesting user; RefusedError."""
        client = self.clients.known(client_id)
        if not self._is_own(session, client):
            raise RefusedError(errors.STAN_UNKNOWN_CLIENT_ID)
        return client

    def _check_subscription(self, asked: Request, request: pb.SubscriptionRequest) -> None:
        """Raise RefusedError unless the requesting user has the rights for it."""
        service, session = self.service, asked.session
        self._own(session, request.clientID)
        if not self._may_use_inbox(session, request.inbox):
            raise RefusedError(errors.STAN_INVALID_SUBSCRIBE)
        assert session is not None
        channel = self.channels.get(request.subject)
        entry = None if channel is None else channel.log
        if not service.access.may_use(session, service.router, READ, entry, request.subject):
            raise RefusedError(errors.STAN_INVALID_SUBJECT)

    def _reply(self, reply: bytes, message: Message | None = None) -> None:
        """Send an answer; an empty one means success."""
        if reply:
            self.service.publish(reply, b"" if message is None else message.SerializeToString())

    # --- clients

    def _connect(self, asked: Request) -> None:
        reply, session = asked.reply, asked.session
        request = _decoded(pb.ConnectRequest, asked.data)
        if request is None or not self._may_use_inbox(session, request.heartbeatInbox):
            self._reply(reply, pb.ConnectResponse(error=errors.STAN_INVALID_CONNECT))
            return
        record = ClientRecord(
            request.clientID,
            request.heartbeatInbox,
            request.connID.hex(),
            request.protocol,
            request.pingInterval,
            request.pingMaxOut,
            None if session is None else session.owner,
        )
        self.clients.connect(record, lambda result: self._connected(reply, result))

    def _connected(self, reply: bytes, result: Client | str) -> None:
        if isinstance(result, str):
            self._reply(reply, pb.ConnectResponse(error=result))
            return
        to = self.subjects
        answer = pb.ConnectResponse(
            pubPrefix=to.publish,
            subRequests=to.subscribe,
            unsubRequests=to.unsubscribe,
            closeRequests=to.close,
            subCloseRequests=to.close_subscription,
            protocol=PROTOCOL,
        )
        if result.protocol >= PROTOCOL:
            answer.pingRequests = to.ping
            answer.pingInterval = result.ping_interval
            answer.pingMaxOut = result.ping_max
        self._reply(reply, answer)

    def _ping(self, asked: Request) -> None:
        request = _decoded(pb.Ping, asked.data)
        if asked.data and request is not None:  # an invalid ping is not answered
            error = self.clients.ping(request.connID)
            self._reply(asked.reply, pb.PingResponse(error=error))

    def _close(self, asked: Request) -> None:
        reply = asked.reply
        request = _decoded(pb.CloseRequest, asked.data)
        if request is None:
            self._reply(reply, pb.CloseResponse(error=errors.STAN_INVALID_CLOSE))
            return
        client = self.service.clients.get(request.clientID.encode())
        if client is None or not self._is_own(asked.session, client):
            self._reply(reply, pb.CloseResponse(error=errors.STAN_UNKNOWN_CLIENT_ID))
            return
        self.clients.close(client)
        self._reply(reply)

    # --- subscriptions

    def _subscribe(self, asked: Request) -> None:
        reply = asked.reply
        request = _decoded(pb.SubscriptionRequest, asked.data)
        if request is None:
            self._refuse(reply, errors.STAN_INVALID_SUBSCRIBE)
            return
        try:
            check_request(request, is_valid_channel)
            self._check_subscription(asked, request)
            self._open(reply, request)
        except SearchNeededError:
            if len(self.tasks) >= limits.STAN_SEARCHES_MAX:
                self._refuse(reply, errors.STAN_SEARCHES)
                return
            task = asyncio.create_task(self._search(reply, request))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        except RefusedError as problem:
            self._refuse(reply, str(problem))
        except OSError as problem:
            self._refuse(reply, reason_of(problem))

    def _open(
        self, reply: bytes, request: pb.SubscriptionRequest, found: int | None = None
    ) -> None:
        client = self.clients.known(request.clientID)
        subscription = self.subscriptions.add(SubscribeRequest(client, request, found))
        subscription.attach(client, paused=True)
        ack_inbox = subscription.record.ack_inbox

        def safe(problem: OSError | None) -> None:
            here = subscription.client is client and subscription.record.ack_inbox == ack_inbox
            if problem is not None:
                self._refuse(reply, reason_of(problem))
                if here:
                    self.subscriptions.leave(subscription)  # OSError: the disk is full as well
            elif not here:  # the client was closed meanwhile
                self._refuse(reply, errors.STAN_UNKNOWN_CLIENT_ID)
            else:  # send the answer first, then messages
                self._reply(reply, pb.SubscriptionResponse(ackInbox=ack_inbox))
                subscription.resume()

        self._when_safe(subscription, safe)

    def _when_safe(self, subscription: Subscription, done: Done) -> None:
        """Call `done`: for a durable after its creation or deletion is on disk, else at once."""
        if subscription.record.is_durable:
            self.subscriptions.store.when_safe(done, subscription.channel.log)
        else:
            done(None)

    async def _search(self, reply: bytes, request: pb.SubscriptionRequest) -> None:
        """Subscribe with a start by time, whose position is searched in a thread."""
        try:
            found = await asyncio.to_thread(self.subscriptions.search(request))
            self._open(reply, request, found)
        except RefusedError as problem:
            self._refuse(reply, str(problem))
        except OSError as problem:
            self._refuse(reply, reason_of(problem))
        except Exception:
            log.exception("a start by time in %r", request.subject)

    def _refuse(self, reply: bytes, error: str) -> None:
        self._reply(reply, pb.SubscriptionResponse(error=error))

    def _leave(self, asked: Request, *, erase: bool) -> None:
        reply = asked.reply
        request = _decoded(pb.UnsubscribeRequest, asked.data)
        try:
            if request is None:
                raise RefusedError(errors.STAN_INVALID_UNSUBSCRIBE)
            channel = self.channels.get(request.subject)
            if channel is None:
                raise RefusedError(errors.STAN_UNKNOWN_CHANNEL)
            subscription = self.subscriptions.find(channel, request.inbox)
            client = subscription.client
            if subscription.record.client_id != request.clientID or (
                client is not None and not self._is_own(asked.session, client)
            ):
                raise RefusedError(errors.STAN_UNKNOWN_CLIENT_ID)
            self.subscriptions.leave(subscription, erase=erase)
        except RefusedError as problem:
            self._refuse(reply, str(problem))
        except OSError as problem:
            self._refuse(reply, reason_of(problem))
        else:
            self._answer_leave(reply, subscription, erased=erase)

    def _answer_leave(self, reply: bytes, subscription: Subscription, *, erased: bool) -> None:
        def safe(problem: OSError | None) -> None:
            if problem is None:
                self._reply(reply)
            else:
                self._refuse(reply, reason_of(problem))

        if erased:
            self._when_safe(subscription, safe)
        else:
            safe(None)


def _decoded(kind: type[M], data: bytes) -> M | None:
    """The decoded message; None if the bytes are invalid."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message
