"""NATS clients and the pages that NATS tools read."""
