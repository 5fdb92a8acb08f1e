"""Sessions of NATS clients: handshake, permissions, publishing, subscriptions.

Start with `session`. Imported by the server and by leaf nodes.
"""
