"""The log engine: durable logs, the cursors that read them, recovery after a crash.

Start with `engine` (all logs of a data folder), then `log/log` and `cursor/cursor`. It names no
protocol and opens no socket. It imports `runtime` and `routing`; protocols, the bulk API and the
server import it.
"""
