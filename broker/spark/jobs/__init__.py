"""Jobs that run by `twinwire pipeline NAME` and by spark-submit alike.

Each has `build(spark, args)`, which does the work, and a thin `main(argv)`. What runs in tasks is
in modules of its own, which import neither click nor PySpark.
"""
