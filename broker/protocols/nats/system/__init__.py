"""The system account: events that are published to it and requests that it answers.

Start with `system`. Imported by the server.
"""
