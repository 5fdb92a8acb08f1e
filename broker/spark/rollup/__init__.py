"""Counts and latencies of deliveries by time, kept up to date from the event log.

Start with `plan`. Imported by the jobs.
"""
