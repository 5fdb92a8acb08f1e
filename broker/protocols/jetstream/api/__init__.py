"""Requests on `$JS.API.>`: decoding, dispatch, checks and the verbs of streams and messages.

Start with `dispatch`. `jetstream` creates a dispatcher for each account; the verbs of consumers are
in `consumers/`. Besides protocols/jetstream, the console and the importers import this folder.
"""
