"""Commands that take the place of an original server, with its flags and files.

Start with `goflags` (flags as Go's flag package reads them). Imported by the command line only.
"""
