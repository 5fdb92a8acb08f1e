"""One folder for each protocol: its wire format, sessions, logins and monitoring.

`access` decides who may use a log, whatever the protocol. The server imports them; a protocol
imports another only where it is carried by it (NATS Streaming by NATS).
"""
