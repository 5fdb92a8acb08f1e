"""Clients for tests: raw sockets, and small clients for each protocol."""
