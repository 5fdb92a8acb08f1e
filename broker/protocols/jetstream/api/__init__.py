"""Requests on `$JS.API.>`: decoding, dispatch, checks and the verbs of streams and messages.

Start with `dispatch`. `account` creates the dispatcher; verbs of consumers are in `consumers/`.
"""
