"""The files in which nats-server keeps streams: blocks of records, compressed and encrypted.

Start with `records`, a record of a block. Imported by what takes over streams of nats-server.
"""
