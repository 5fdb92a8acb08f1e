"""Consumers of JetStream: what clients read a stream with.

Start with `consumer.pyx`: one consumer, its acknowledgements and its state. `pull.pyx` and
`push.pyx` are its two kinds, `wire.pyx` the texts on the wire, `checks.py` the rules for
configurations, `channel.pyx` the NSQ clients of a pull consumer. Imported by the modules of
protocols/jetstream only.
"""
