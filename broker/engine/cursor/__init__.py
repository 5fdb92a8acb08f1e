"""One position in a log with its acknowledgements: a channel, a durable subscription.

Start with `cursor`; `inflight` has what was delivered and waits for an answer, `journal` makes
acknowledgements durable. Imported by protocols that deliver from logs.
"""
