"""The files in which nats-server stores streams: blocks of records, compressed and encrypted.

Start with `records`, the records of a block. `backup/` and the importers import this folder.
"""
