"""Sockets: connections and listeners. It meets sessions through the seams of `broker.core`."""
