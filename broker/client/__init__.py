"""Clients: the asyncio one of NSQ, and the compiled load generator behind `twinwire bench`."""
