"""`twinwire nats-streaming-server`: start with `command`.

Imported by the command line, by name, when it is called.
"""
