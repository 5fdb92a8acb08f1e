"""Commands that are clients: publish, read, export, archive and forward topics.

Each module is one command, or a part of one. Imported by the command line, by name.
"""
