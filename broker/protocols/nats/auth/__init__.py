"""Authentication: users, passwords, nkeys, certificates, the auth callout.

Start with `authenticator` (the types) and `local` (users of the configuration). Imported by the
handshakes and the server.
"""
