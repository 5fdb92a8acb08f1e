"""Operator mode: tokens of users and accounts, and where they are found.

Start with `operator`, then `tokens` and `claims`. Imported by `auth` and the server.
"""
