"""`twinwire nats-server`: start with `command`, then `run`.

Imported by the command line, by name, when it is called.
"""
