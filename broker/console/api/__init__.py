"""The handlers of the console's API, by the area of the broker that they show and change.

Each takes a checked Call and returns the answer; `handlers_of` names them as openapi.json does.
Only `app` imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.console.api.changes import ChangeHandlers
from broker.console.api.dead_letters import DeadLetterHandlers
from broker.console.api.jetstream.changes import StreamChangeHandlers
from broker.console.api.jetstream.messages import StreamMessageHandlers
from broker.console.api.jetstream.streams import StreamHandlers
from broker.console.api.messages import MessageHandlers
from broker.console.api.nats import NatsHandlers
from broker.console.api.overview import OverviewHandlers
from broker.console.api.publish import PublishHandlers
from broker.console.api.readers import ReaderHandlers
from broker.console.api.topics import TopicHandlers

if TYPE_CHECKING:
    from broker.console.context import ConsoleContext, Handlers


def handlers_of(context: ConsoleContext) -> Handlers:
    """All handlers by the names of their operations."""
    kinds = (
        OverviewHandlers,
        TopicHandlers,
        MessageHandlers,
        ChangeHandlers,
        DeadLetterHandlers,
        NatsHandlers,
        StreamHandlers,
        StreamMessageHandlers,
        StreamChangeHandlers,
        PublishHandlers,
        ReaderHandlers,
    )
    found: Handlers = {}
    for kind in kinds:
        found |= kind(context).handlers()
    return found
