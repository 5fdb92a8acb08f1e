"""Twinwire: one message broker that NSQ and NATS clients connect to unchanged."""

__version__ = "0.1.0"
