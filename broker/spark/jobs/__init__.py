"""The jobs of `twinwire pipeline NAME`, which spark-submit can run as well.

Each has `build(spark, args)`, which does the work, and a thin `main(argv)`. Code that runs in tasks
is in separate modules, which import neither click nor PySpark.
"""
