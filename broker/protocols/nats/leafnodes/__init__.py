"""Leaf nodes: links that are accepted and links that are dialled.

Start with `leafnodes`, then `session`. Imported by the server.
"""
