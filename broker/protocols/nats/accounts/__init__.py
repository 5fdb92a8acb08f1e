"""Accounts: their routers, imports, exports and subject mappings.

Start with `account`. Imported by sessions, leaf nodes, logins and the server.
"""
