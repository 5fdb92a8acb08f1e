"""Bringing what a log has written onto the disk; nothing here is for Python."""
