"""The bulk API: whole ranges of logs over HTTP, for pipelines. See docs/bulk-api.md.

Start with `app` (the listener and its routes), then `read/` and `write/`. The server and the
configuration import it.
"""
