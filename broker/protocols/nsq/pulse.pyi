"""The clock of an NSQ session."""
