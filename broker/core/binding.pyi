"""A log's place in the router."""

from typing import final

from broker.core.seams import Sink

@final
class Binding(Sink): ...
