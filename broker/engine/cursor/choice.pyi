"""Which consumer of a cursor takes a record."""
