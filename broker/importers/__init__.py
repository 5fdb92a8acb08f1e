"""Imports data folders of nsqd, NATS Streaming and nats-server.

Start with `nsqd`, `stan` and `jetstream`; `diskqueue` and `stan_files` read the originals' files.
Imported by the command line and the server's start.
"""
