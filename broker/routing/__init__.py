"""Subjects and their subscriptions: one router for all protocols.

Start with `router`; `trie` finds the subscriptions that match a subject. It imports `runtime`; the
engine and the protocols import it.
"""
