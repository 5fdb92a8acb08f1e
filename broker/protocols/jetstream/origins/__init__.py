"""Mirrors and sources: streams that copy streams of this account, other accounts or other servers.

Start with `copier.pyx`, which copies one origin into one stream. `registry.py` connects the streams
of an account, `positions.py` stores how far each source was copied, and `remote.py` reads origins
through a consumer. Only the modules of protocols/jetstream import this folder.
"""
