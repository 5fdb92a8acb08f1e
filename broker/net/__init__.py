"""Sockets: connections, listeners, TLS, WebSocket, HTTP listeners.

Start with `listener` and `conn`. Connections meet sessions through `broker.runtime.interfaces`.
The protocols, the bulk API and the server import it.
"""
