"""Clients: the compiled load generator behind `twinwire bench`."""
