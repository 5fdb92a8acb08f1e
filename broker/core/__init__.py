"""The engine: buffers, router, log and cursor.

It names no protocol, opens no socket, reads no clock but the turn's.
"""
