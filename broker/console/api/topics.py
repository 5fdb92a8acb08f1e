"""Topics and channels: lists, one topic with its settings, one channel with its consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.console import errors
from broker.console.errors import RefusedError
from broker.console.listing import Selection, ordered
from broker.console.pauses import Pauses
from broker.engine.config import StorageConfig, TopicConfig
from broker.engine.cursor.cursor import cursors_of
from broker.engine.cursor.deadletter import dead_letters_of
from broker.protocols.nsq.http.settings import TopicSettings
from broker.protocols.nsq.http.v1 import moment
from broker.protocols.nsq.service import NsqService

if TYPE_CHECKING:
    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log
    from broker.protocols.nsq.session import NsqSession

    Json = dict[str, Any]


class TopicHandlers:
    """The handlers of /v1/topics."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context
        self.listing = context.listing

    def handlers(self) -> Handlers:
        """By operation."""
        return {
            "topics": self.topics,
            "topic": self.topic,
            "channels": self.channels,
            "channel": self.channel,
        }

    async def topics(self, call: Call) -> Json:
        """A page of the list."""
        return await self.listing.page(Selection(**call.query))

    async def topic(self, call: Call) -> Json:
        """One topic."""
        return topic_page(self.context, self.context.log(call.topic))

    async def channels(self, call: Call) -> Json:
        """A page of the channels of a topic."""
        log, query = self.context.log(call.topic), call.query
        cursors, pauses = [cursor for _, cursor in sorted(cursors_of(log).items())], Pauses()
        text, values, matched = (query["filter"] or "").lower(), [], []
        column, descending = query["sort"].removeprefix("-"), query["sort"].startswith("-")
        for number, cursor in enumerate(cursors):
            value = number if column == "name" else self.listing.channel_row(cursor)[column]
            values.append(value or 0)
            if text in cursor.name.lower():
                matched.append(number)
            if pauses.is_due():
                await pauses.pause()
        end = query["offset"] + query["limit"]
        effective = await ordered(
            matched, values.__getitem__, query["offset"], end, descending=descending
        )
        return {
            "topic": log.name,
            "total": len(cursors),
            "matched": len(matched),
            "offset": query["offset"],
            "limit": query["limit"],
            "sort": query["sort"],
            "channels": [
                self.listing.channel_row(cursors[n]) for n in effective if not cursors[n].deleted
            ],
        }

    async def channel(self, call: Call) -> Json:
        """One channel with its consumers."""
        log = self.context.log(call.topic)
        cursor = self.context.cursor(log, call.names["channel"])
        return {
            **self.listing.channel_row(cursor),
            "topic": log.name,
            "next_seq": cursor.next_seq,
            "clients": [_client(session) for session in self._sessions(cursor)],
            "dead_letter_policy": policy_page(self.context, cursor),
        }

    def _sessions(self, cursor: Cursor) -> list[NsqSession]:
        service = self.context.host.service(NsqService)
        if service is None or service.listener is None:
            return []
        found = [one for one in service.listener.sessions if one.cursor is cursor]
        return sorted(found, key=lambda session: session.start_ns)


def _client(session: NsqSession) -> Json:
    identity = session.identity
    _state, ready, in_flight, delivered, finished, requeued = session.numbers()
    return {
        "client_id": identity.client_id,
        "hostname": identity.hostname,
        "address": session.remote_address,
        "user_agent": identity.user_agent,
        "ready": ready,
        "in_flight": in_flight,
        "messages": delivered,
        "finished": finished,
        "requeued": requeued,
        "connected": moment(session.start_ns),
    }


def topic_page(context: ConsoleContext, log: Log) -> Json:
    """Everything about one topic except its channels."""
    subjects = log.policy.subjects
    return {
        **context.listing.row(log),
        "incarnation": log.log_id.hex(),
        "created": moment(log.created_ns),
        "first_seq": log.first_seq,
        "next_seq": log.visible,
        "held_from": log.retention.retained_from,
        "unclaimed": log.unclaimed,
        "protocol": log.protocol,
        "settings": _settings(context, log),
        "subjects": None if subjects is None else list(subjects),
    }


def _settings(context: ConsoleContext, log: Log) -> list[Json]:
    """The settings in force, each with its origin."""
    page = TopicSettings(context.host.engine).show(log)
    effective, overridden = page["settings"], page["set"]
    assert isinstance(effective, dict)
    assert isinstance(overridden, dict)
    configured = context.host.section(StorageConfig).for_topic(log.name)
    defaults = TopicConfig(sync=StorageConfig().sync)
    found = []
    for key, value in effective.items():
        attribute = key if hasattr(configured, key) else f"{key}_ns"
        differs = getattr(configured, attribute) != getattr(defaults, attribute)
        origin = "topic" if key in overridden else "configuration" if differs else "default"
        found.append({"key": key, "value": value, "origin": origin})
    return found


def policy_page(context: ConsoleContext, cursor: Cursor) -> Json | None:
    """The dead-letter policy of a channel; None without an NSQ listener, which has the policies."""
    service = context.host.service(NsqService)
    if service is None or service.listener is None:
        return None
    policies, dead_letters = service.listener.dead_letters, dead_letters_of(cursor)
    policy = policies.policy(cursor)
    return {
        "topic": cursor.log.name,
        "channel": cursor.name,
        "max_attempts": policy.max_attempts,
        "dead_letter_topic": policy.topic,
        "set_for_channel": policies.is_own(cursor),
        "dead_letters": 0 if dead_letters is None else dead_letters.count,
        "failing": dead_letters is not None and dead_letters.failing,
    }


def need_nsq(context: ConsoleContext) -> NsqService:
    """The NSQ service with its listener. RefusedError: it is disabled."""
    service = context.host.service(NsqService)
    if service is None or service.listener is None:
        raise RefusedError(errors.NO_SERVICE, what="[nsq] listen")
    return service
