"""The configuration language of nats-server, and the settings read from it.

Start with `parser` (text to values) and `reader` (values to settings). Imported by the command line
and by reloads.
"""
