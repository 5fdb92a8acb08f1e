"""Spark reads and writes topics through PySpark's Python Data Source API.

    driver:  options -> brokers (survey) -> positions, microbatch -> planning -> partitions
    task:    partition -> fetch -> Arrow batches;   Arrow batches -> upload -> commit message

Start with `offsets` and `topics`, then `source/` and `sink/`; the jobs are in `jobs/`. The modules
`offsets`, `options`, `positions` and `planning` import neither Spark nor Arrow. Imported by
`pyspark_twinwire` and the command line.
"""
