"""One folder for each protocol: its wire format, sessions, logins and monitoring.

`access` decides who may use a log, for all protocols; `stream_topic` is what NSQ calls and
JetStream implements where an NSQ topic is a stream. The server imports them; a protocol
imports another one only if it runs on top of it (NATS Streaming on NATS).
"""
