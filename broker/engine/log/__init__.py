"""One log: segments of records, their syncs, retention, publishing.

Start with `log`; `segment` is one file of it, `sync` decides what is durable. Imported by the
cursors and by everything that publishes.
"""
