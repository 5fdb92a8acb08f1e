"""Spark jobs that a test drives or kills."""
