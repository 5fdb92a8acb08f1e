"""Statistics of records and deliveries by topic, channel and window.

Start with `plan`. Imported by the jobs.
"""
