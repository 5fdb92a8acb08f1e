"""What a log does when the disk fails it; nothing here is for Python."""
