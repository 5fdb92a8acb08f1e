"""nsqd's HTTP interface, and Twinwire's own requests under /v1.

Start with `app` (routes, queries, errors) and `api` (nsqd's requests); `v1` has Twinwire's own.
Imported by the server.
"""
