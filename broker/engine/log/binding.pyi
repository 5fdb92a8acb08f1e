"""A log's place in the router."""

from typing import final

from broker.runtime.interfaces import Sink

@final
class Binding(Sink): ...
