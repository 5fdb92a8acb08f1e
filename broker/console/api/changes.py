"""Changes of topics and channels by the NSQ HTTP API; those that delete data need confirmation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from broker.console import errors
from broker.console.api.topics import need_nsq, policy_page, topic_page
from broker.console.errors import ConsoleError, RefusedError
from broker.protocols.access import READ
from broker.protocols.nsq.dead_letters import default_target
from broker.protocols.nsq.http.app import ApiError, Query
from broker.protocols.nsq.http.settings import TopicSettings
from broker.protocols.nsq.topics import is_channel

if TYPE_CHECKING:
    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.engine.cursor.cursor import Cursor

    Json = dict[str, Any]

DONE = {"done": True}


def refusal_of(error: ApiError) -> RefusedError:
    """An error of the NSQ HTTP API as one of the console."""
    code, _, reason = error.error.code.partition(": ")
    text = reason or code.replace("_", " ").lower()
    return RefusedError(ConsoleError(error.error.status, code, "{text}"), text=text)


class ChangeHandlers:
    """The handlers of requests that change topics and channels."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context

    def handlers(self) -> Handlers:
        """By operation."""
        return {
            "createTopic": self.create_topic,
            "deleteTopic": self.delete_topic,
            "pauseTopic": lambda call: self._on_topic(call, "/topic/pause"),
            "unpauseTopic": lambda call: self._on_topic(call, "/topic/unpause"),
            "emptyTopic": lambda call: self._on_topic(call, "/topic/empty", confirmed=True),
            "setTopic": self.set_topic,
            "createChannel": self.create_channel,
            "deleteChannel": lambda call: self._on_channel(call, "/channel/delete", confirmed=True),
            "pauseChannel": lambda call: self._on_channel(call, "/channel/pause"),
            "unpauseChannel": lambda call: self._on_channel(call, "/channel/unpause"),
            "emptyChannel": lambda call: self._on_channel(call, "/channel/empty", confirmed=True),
            "seekChannel": self.seek,
            "setDeadLetterPolicy": self.set_policy,
            "unsetDeadLetterPolicy": self.unset_policy,
        }

    async def _request(self, path: str, **arguments: object) -> Any:
        """Send a request to the NSQ HTTP API. RefusedError."""
        api = need_nsq(self.context).api
        query = Query(urlencode(arguments, quote_via=quote))
        try:
            return await api.routes()[path]["POST"].handler(_NO_REQUEST, query)
        except ApiError as error:
            raise refusal_of(error) from error

    # --- topics

    async def create_topic(self, call: Call) -> Json:
        """Create a topic; nothing happens if it exists."""
        await self._request("/topic/create", topic=call.body["name"])
        return DONE

    async def delete_topic(self, call: Call) -> Json:
        """Delete a topic with its channels."""
        return await self._on_topic(call, "/topic/delete", confirmed=True)

    async def _on_topic(self, call: Call, path: str, *, confirmed: bool = False) -> Json:
        log = self.context.topic(call.topic)
        if confirmed:
            call.confirmed(log.name)
        await self._request(path, topic=log.name)
        return DONE

    async def set_topic(self, call: Call) -> Json:
        """Replace the topic's own settings."""
        log = self.context.topic(call.topic)
        try:
            TopicSettings(self.context.host.engine).replace(log, call.body)
        except ValueError as problem:
            raise RefusedError(errors.BODY, reason=problem) from None
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise RefusedError(errors.NOT_SAVED, reason=reason) from problem
        return topic_page(self.context, log)

    # --- channels

    def _channel(self, call: Call) -> Cursor:
        """The channel of NSQ in the path. RefusedError: it belongs to another protocol."""
        log = self.context.log(call.topic)
        cursor = self.context.cursor(log, call.names["channel"])
        shared = log.protocol is None or self.context.host.access.may_topic(log, READ)
        if not shared or not is_channel(cursor):
            name = f"{log.name}/{cursor.name}"
            raise RefusedError(
                errors.FOREIGN, topic=name, protocol=log.protocol or "NATS Streaming"
            )
        return cursor

    async def create_channel(self, call: Call) -> Json:
        """Create a channel; nothing happens if it exists."""
        log = self.context.log(call.topic)
        await self._request("/channel/create", topic=log.name, channel=call.body["name"])
        return DONE

    async def _on_channel(self, call: Call, path: str, *, confirmed: bool = False) -> Json:
        cursor = self._channel(call)
        if confirmed:
            call.confirmed(cursor.name)
        await self._request(path, topic=cursor.log.name, channel=cursor.name)
        return DONE

    async def seek(self, call: Call) -> Json:
        """Set the position of the channel; the answer is sent after it is stored."""
        cursor = self._channel(call)
        call.confirmed(cursor.name)
        options = {key: value for key, value in call.body.items() if value is not None}
        if len(options) != 1:
            reason = errors.ONE_OF.format(first="to", second="seq")
            raise RefusedError(errors.BODY, reason=reason)
        target = {"topic": cursor.log.name, "channel": cursor.name}
        found: Json = await self._request("/v1/channel/rewind", **target, **options)
        return found

    # --- dead letters

    async def set_policy(self, call: Call) -> Json:
        """Set the dead-letter policy of the channel."""
        cursor = self._channel(call)
        target = call.body["dead_letter_topic"] or default_target(cursor.log.name)
        await self._request(
            "/v1/deadletters/set",
            topic=cursor.log.name,
            channel=cursor.name,
            max_attempts=call.body["max_attempts"],
            dead_letter_topic=target,
        )
        return self._policy(cursor)

    async def unset_policy(self, call: Call) -> Json:
        """Remove the policy of the channel, so that the configuration applies."""
        cursor = self._channel(call)
        await self._request("/v1/deadletters/unset", topic=cursor.log.name, channel=cursor.name)
        return self._policy(cursor)

    def _policy(self, cursor: Cursor) -> Json:
        page = policy_page(self.context, cursor)
        assert page is not None
        return page


_NO_REQUEST: Any = None  # these handlers only use the query
