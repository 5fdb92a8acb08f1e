"""NATS: clients, leaf nodes, accounts, logins and the pages that NATS tools read.

Start with `server` (what is started and stopped), then `client/session`. The server imports it.
"""
