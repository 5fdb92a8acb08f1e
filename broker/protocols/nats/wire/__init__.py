"""The wire format of NATS: the parser, and the options of INFO and CONNECT.

Start with `wire`. Imported by sessions and by the load generator.
"""
