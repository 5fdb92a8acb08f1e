"""The bulk API: whole ranges of logs over HTTP, for pipelines. See docs/reference/bulk-api.md.

Start with `app` (the routes) and `context` (what handlers share), then `read/` and `write/`;
`service` starts it. The server and the configuration import it.
"""
