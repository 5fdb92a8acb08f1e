"""The configuration file as a whole: its sections, loading, checking.

Start with `config` (the sections) and `load` (from a file to a Config). Each section's keys are
defined by its owner. The server and the command line import it.
"""
