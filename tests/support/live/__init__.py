"""Servers in a thread of the test process, with their own event loop."""
