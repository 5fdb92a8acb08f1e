"""HTTP listeners: limits of connections, checks of requests, and pages.

Start with `connections` (limits of time and number) and `guard` (checks of Host and Origin).
Imported by every listener that serves HTTP.
"""
