"""nsqlookupd: the registry that clients ask, and the links of this broker to others.

Start with `registry`. Imported by the server.
"""
