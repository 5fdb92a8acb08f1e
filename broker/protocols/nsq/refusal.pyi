"""What a client is told about a command that is wrong; nothing here is for Python."""
