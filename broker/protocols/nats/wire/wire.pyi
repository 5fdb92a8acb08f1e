"""The NATS client protocol as bytes: operations out of input, messages into output."""

NAMES: dict[int, str]
