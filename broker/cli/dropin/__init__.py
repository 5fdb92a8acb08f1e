"""Commands that replace an original server and accept its flags and files.

Start with `goflags` (flags as Go's flag package reads them). Imported by the command line only.
"""
