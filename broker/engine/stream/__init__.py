"""A log with the keeping of a stream: its messages by subject, its limits, its consumers' places.

Start with `cursor`, a consumer's place. Imported by the protocol of JetStream.
"""
