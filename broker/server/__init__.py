"""The broker as a process: starts and stops the engine and all services, and counts.

Start with `server`, then `services`, the list of what it runs. The command line imports it.
"""
