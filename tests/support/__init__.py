"""Helpers of tests: server processes, clients, fakes, golden transcripts, tables of logins."""

from support.clients.peer import Frame, PeerError, RawPeer, nats_peer, nsq_peer
from support.servers.processes import (
    Address,
    Broker,
    Originals,
    Server,
    ServerError,
    running_servers,
)

__all__ = [
    "Address",
    "Broker",
    "Frame",
    "Originals",
    "PeerError",
    "RawPeer",
    "Server",
    "ServerError",
    "nats_peer",
    "nsq_peer",
    "running_servers",
]
