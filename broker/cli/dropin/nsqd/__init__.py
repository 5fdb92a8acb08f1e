"""`twinwire nsqd` and `twinwire nsqlookupd`: start with `command`.

Imported by the command line, by name, when it is called.
"""
