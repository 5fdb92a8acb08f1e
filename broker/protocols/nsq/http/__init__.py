"""nsqd's HTTP interface, and the /v1 interface beside it.

Start with `app` (routes, queries, errors) and `api` (nsqd's requests); `v1` has our own. Imported
by the server.
"""
