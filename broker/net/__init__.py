"""Sockets: connections and listeners. It meets sessions through `broker.runtime.interfaces`."""
