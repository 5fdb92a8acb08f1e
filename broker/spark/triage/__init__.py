"""Dead letters grouped by what they have in common.

Start with `tasks`. Imported by the jobs.
"""
