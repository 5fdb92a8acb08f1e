"""What a store reports to the readers of its stream."""

from broker.runtime.interfaces import Task

class StreamReader(Task): ...
