"""Imports the store of a nats-server with JetStream: streams, their messages and consumers.

Start with `importer`; `source` reads the original's folders, `transfer` moves the messages.
Imported by the command line.
"""
