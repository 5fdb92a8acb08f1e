"""Clients: `nsq` (asyncio) and `bulk` (ranges of logs as Arrow tables). Their names are public.

They import nothing of the broker but units and compiled wire formats. The command line, the
pipeline and users import them.
"""
