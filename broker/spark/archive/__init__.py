"""The archive of topics on a lake: its table, planning, writing, compaction, replay.

Start with `manifest` (the format). `plan`, `replay` and `manifest` run on the driver without
PyArrow; `write`, `compact` and `stage` run in tasks and need it. Imported by the jobs.
"""
