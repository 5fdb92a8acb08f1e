"""The state of a cursor as journal operations, and back; nothing here is for Python."""
