"""Writing topics from Spark.

Start with `sink`. Imported by `pyspark_twinwire`.
"""
