"""NATS Streaming in tests: a client, its wire format, stores of the original."""
