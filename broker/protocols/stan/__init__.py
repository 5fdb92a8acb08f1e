"""NATS Streaming: protobuf requests on NATS subjects, channels that are logs of the engine."""
