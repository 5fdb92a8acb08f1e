"""Loads whose connections speak NATS and look at each message."""

from broker.bench.loadgen import Load

class NatsLoad(Load): ...
