"""The system account: its events and requests.

Start with `system`. Imported by the server.
"""
