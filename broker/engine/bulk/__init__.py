"""What the bulk API needs of the engine: ranges of records, staged blocks, deduplication.

Start with `ranges`. Imported by `broker.bulk` and by the engine's recovery.
"""
