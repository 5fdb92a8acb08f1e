"""Sessions of NATS clients: handshake, permissions, publishing, subscriptions.

Start with `line_session`, which leaf nodes use as a base too, then `session`. Imported by
the server and by leaf nodes.
"""
