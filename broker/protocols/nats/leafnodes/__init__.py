"""Leaf nodes: accepted and dialled connections between servers.

Start with `leafnodes`, then `session`. Imported by the server.
"""
