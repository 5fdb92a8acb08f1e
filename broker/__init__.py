"""Twinwire: a message broker for NSQ, NATS and NATS Streaming clients."""

__version__ = "0.1.0"
