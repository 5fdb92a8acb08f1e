"""Mirrors and sources: streams that copy what other streams of the account have.

Start with `feed`, which copies from one stream to another; `feeds` has those of an account.
"""
