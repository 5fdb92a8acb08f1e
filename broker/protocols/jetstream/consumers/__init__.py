"""Consumers of JetStream: clients read a stream through them.

Start with `consumer.pyx`: one consumer, its acknowledgements and its state. `pull.pyx` and
`push.pyx` are its two kinds, `wire.pyx` has the texts on the wire, `checks.py` the rules for
configurations, `channel.pyx` the NSQ clients of a pull consumer. Besides protocols/jetstream, the
importers import this folder, and the console imports its types.
"""
