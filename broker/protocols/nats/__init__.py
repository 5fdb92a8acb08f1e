"""NATS: clients, leaf nodes, accounts, logins, and the monitoring pages for NATS tools.

Start with `server` (the parts, their start and stop), then `client/session`. The server imports it.
"""
