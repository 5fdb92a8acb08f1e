"""Operator mode: tokens of users and accounts, and their resolvers.

Start with `operator`, then `tokens` and `claims`. Imported by `auth` and the server.
"""
