"""The subscriptions of one connection by sid; nothing here is for Python."""
