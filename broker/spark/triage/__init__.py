"""Dead letters grouped by reason, origin and shape.

Start with `tasks`. Imported by the jobs.
"""
