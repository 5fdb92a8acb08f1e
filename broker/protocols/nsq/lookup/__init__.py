"""nsqlookupd: the registry for clients, and the connections of this broker to other nsqlookupds.

Start with `registry`. Imported by the server.
"""
