"""Scanner and writer of the NATS client protocol."""

NAMES: dict[int, str]
