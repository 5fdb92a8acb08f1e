"""Twinwire: a message broker for NSQ, NATS and NATS Streaming clients."""

from broker import _compiled

__version__ = "0.1.0"

_compiled.install()
