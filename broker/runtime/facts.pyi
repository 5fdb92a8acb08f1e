"""What the file system says of a file, without an object for it."""
