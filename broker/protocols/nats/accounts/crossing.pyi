"""State of messages that cross between accounts, shared by all imports of a server."""

from typing import final

from broker.protocols.nats.accounts.account import CurrentPublisher
from broker.runtime.interfaces import Task
from broker.runtime.turn import Turn

@final
class Crossing(Task):
    turn: Turn
    current_publisher: CurrentPublisher
    server: dict[str, str]
    mark: bytes
    def __init__(
        self,
        turn: Turn,
        current_publisher: CurrentPublisher,
        server_name: str = "",
        cluster: str = "",
    ) -> None: ...
