"""Recorded transcripts: reading and replaying them."""
