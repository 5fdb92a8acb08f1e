"""What a log does beside appending and reading; nothing here is for Python."""
