"""NSQ: the V2 protocol of nsqd over TCP, its HTTP interface, and nsqlookupd.

Start with `session` (one connection) and `frontend` (state of all connections), then `http/` and
`lookup/`. The server imports it.
"""
