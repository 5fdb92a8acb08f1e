"""Snapshots of streams and their restoration, in the formats of nats-server.

Start with `snapshot`, which sends a stream; `restore` receives one. The importers read and write
files with this folder too.
"""
