"""Mirrors and sources: streams that copy other streams of their account.

Start with `copier.pyx`, which copies one origin into one stream. `registry.py` connects the streams
of an account, `positions.py` keeps how far each source was copied. Imported by the modules of
protocols/jetstream only.
"""
