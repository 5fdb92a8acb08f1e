"""Accounts: their router, imports and exports, subject mappings.

Start with `account`. Imported by sessions, leaf nodes, logins and the server.
"""
