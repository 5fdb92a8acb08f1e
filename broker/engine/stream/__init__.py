"""A log whose messages have subjects, each deleted on its own, and the cursors that read it.

Start with `store` (one stream: appends, reads, limits, deletes), then `cursor` (a consumer's place
in it). `subjects` and `filter` know which message has which subject. Imported by the protocol that
has such streams.
"""
