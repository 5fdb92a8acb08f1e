"""The broker as a process: starts and stops the engine and every service, and counts.

Start with `server`. It imports everything below it; the command line imports it.
"""
