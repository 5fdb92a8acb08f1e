"""The archive of topics on a lake: its table, planning, writing, compaction, replay.

Start with `manifest` (the table's format). Imported by the jobs.
"""
