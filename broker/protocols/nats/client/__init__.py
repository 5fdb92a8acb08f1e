"""Sessions of NATS clients: handshake, permissions, publishing, subscriptions.

Start with `line_session`, the base that the links of leaf nodes share, then `session`. Imported by
the server and by leaf nodes.
"""
