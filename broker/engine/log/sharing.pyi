"""New records of a log, told to those who do not read the log."""
