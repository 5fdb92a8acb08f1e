"""Reading by the bulk API: topics, ranges of records, registered readers.

Start with `ranges`. Imported by `bulk.app`.
"""
