"""Takes over the data folders of nsqd and NATS Streaming.

Start with `nsqd` and `stan`; the other modules read the originals' files. Imported by the command
line and the server's start.
"""
