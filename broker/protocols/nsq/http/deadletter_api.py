"""Dead letters on the HTTP door: what holds for a channel, and the way back. See docs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base.units import COUNT_MAX
from broker.engine import limits as engine_limits
from broker.net.http.errors import HttpError
from broker.protocols.access import READ
from broker.protocols.nsq.channels import channel_of, channels_of
from broker.protocols.nsq.dead_letters import Policy, default_target
from broker.protocols.nsq.http import errors
from broker.protocols.nsq.http.app import ApiError, Route, find_topic
from broker.protocols.nsq.requeue import give_back
from broker.protocols.nsq.wire import is_ephemeral, is_name

if TYPE_CHECKING:
    from aiohttp import web

    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log
    from broker.protocols.nsq.http.app import Answer, Query
    from broker.protocols.nsq.listener import NsqDoor

_REQUEUE_CHANNEL = "requeue"


def routes(door: NsqDoor) -> dict[str, dict[str, Route]]:
    """What there is under /v1/deadletters."""
    api = _DeadLetterApi(door)
    return {
        "/v1/deadletters": {"GET": Route(api.show)},
        "/v1/deadletters/set": {"POST": Route(api.set)},
        "/v1/deadletters/unset": {"POST": Route(api.unset)},
        "/v1/deadletters/requeue": {"POST": Route(api.requeue)},
    }


class _DeadLetterApi:
    def __init__(self, door: NsqDoor) -> None:
        self.topics = door.topics
        self.policies = door.dead_letters

    async def show(self, _request: web.Request, query: Query) -> Answer:
        """The channels of a topic, or of all."""
        if query.get("topic") is None:
            logs = list(self.topics.logs.values())
        else:
            logs = [self._topic(query)]
        found = [cursor for log in logs for cursor in channels_of(log)]
        if (name := query.get("channel")) is not None:
            found = [cursor for cursor in found if cursor.name == name]
        found.sort(key=lambda cursor: (cursor.log.name, cursor.name))
        return {"channels": [self._page(cursor) for cursor in found]}

    async def set(self, _request: web.Request, query: Query) -> Answer:
        """For one channel, whatever the configuration says; 0 attempts = no dead letters."""
        cursor = self._channel(query)
        most = _number(query, "max_attempts", engine_limits.ATTEMPTS_MAX, errors.NSQ_DEAD_ATTEMPTS)
        if most is None:
            raise ApiError(errors.NSQ_DEAD_ATTEMPTS)
        target = query.get("dead_letter_topic") or default_target(cursor.log.name)
        raw = target.encode("utf-8", "surrogateescape")
        if not is_name(raw) or is_ephemeral(raw) or target == cursor.log.name:
            raise ApiError(errors.NSQ_DEAD_TARGET)
        return self._set(cursor, Policy(most, target))

    async def unset(self, _request: web.Request, query: Query) -> Answer:
        """As the configuration says."""
        return self._set(self._channel(query), None)

    async def requeue(self, _request: web.Request, query: Query) -> Answer:
        """Move the messages of a dead-letter topic back."""
        log = self._topic(query, READ)
        to = query.get("to") or "channel"
        if to not in {"channel", "topic"}:
            raise ApiError(errors.NSQ_DEAD_TO)
        most = _number(query, "limit", COUNT_MAX, errors.NSQ_DEAD_LIMIT)
        name = query.get("channel") or _REQUEUE_CHANNEL
        if not is_name(name.encode("utf-8", "surrogateescape")):
            raise ApiError(errors.NSQ_HTTP_ARG_CHANNEL)
        if channel_of(log, name) is None and channels_of(log):
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)  # a new one would be empty
        cursor = log.open_cursor(name, ephemeral=is_ephemeral(name.encode()))
        if cursor.paused:
            raise ApiError(errors.NSQ_DEAD_PAUSED)
        most = COUNT_MAX if most is None else most
        done = await give_back(self.topics, cursor, most, to_topic=to == "topic")
        if done.failed and not done.moved:
            raise ApiError(errors.NSQ_DEAD_FAILED)
        return {**done._asdict(), "left": cursor.depth}

    def _page(self, cursor: Cursor) -> dict[str, object]:
        policy, dead = self.policies.policy(cursor), cursor.dead
        return {
            "topic": cursor.log.name,
            "channel": cursor.name,
            "max_attempts": policy.max_attempts,
            "dead_letter_topic": policy.topic,
            "set_for_channel": self.policies.is_own(cursor),
            "dead_letters": 0 if dead is None else dead.count,
            "leaving": 0 if dead is None else dead.leaving,
            "failing": dead is not None and dead.failing,
        }

    def _set(self, cursor: Cursor, policy: Policy | None) -> Answer:
        try:
            self.policies.set(cursor, policy)
        except OSError as problem:
            raise ApiError(errors.NSQ_DEAD_FAILED) from problem
        return self._page(cursor)

    def _topic(self, query: Query, *rights: int) -> Log:
        name = query.get("topic")
        if name is None:
            raise ApiError(errors.NSQ_HTTP_NO_TOPIC)
        return find_topic(self.topics, name, *rights)

    def _channel(self, query: Query) -> Cursor:
        log, name = self._topic(query, READ), query.get("channel")
        if name is None:
            raise ApiError(errors.NSQ_HTTP_NO_CHANNEL)
        cursor = channel_of(log, name)
        if cursor is None:
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)
        return cursor


def _number(query: Query, name: str, most: int, error: HttpError) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or int(text) > most:
        raise ApiError(error)
    return int(text)
