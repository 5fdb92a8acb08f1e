"""NATS Streaming: protobuf requests on NATS subjects; channels are logs of the engine.

Start with `streaming`, then `publish`. The server imports it.
"""
