"""What a store tells those who read its stream."""

from broker.runtime.interfaces import Task

class StreamReaders(Task): ...
