"""Imports data folders of nsqd and NATS Streaming.

Start with `nsqd` and `stan`; `diskqueue` and `stan_files` read the originals' files. Imported
by the command line and the server's start.
"""
