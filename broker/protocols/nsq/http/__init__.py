"""nsqd's HTTP interface, and the /v1 interface beside it.

Start with `app` (the listener) and `api` (nsqd's requests). Imported by the server.
"""
