"""What the tests that speak to a real server share: processes, raw sockets, golden transcripts."""

from harness.peer import Frame, PeerError, RawPeer, nats_peer, nsq_peer
from harness.servers import Address, Broker, Originals, Server, ServerError, running_servers

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
