"""Clients: `nsq` (asyncio) and `bulk` (ranges of logs as Arrow tables). Their names are public.

They import no other part of the broker, except the version. The command line, `spark` and users
import them.
"""
