"""NATS Streaming: channels of logs behind subjects of a NATS account."""
