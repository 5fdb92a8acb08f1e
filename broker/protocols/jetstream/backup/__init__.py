"""Snapshots of streams and their restoration, in the formats of nats-server.

Start with `snapshot`, what is sent; `restore` takes what comes back.
"""
