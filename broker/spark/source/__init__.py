"""Reading topics into Spark, as a batch or a stream.

Start with `batch`, then `stream`. Imported by `pyspark_twinwire`.
"""
