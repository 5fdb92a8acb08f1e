"""Spark reads and writes topics through PySpark's Python Data Source API.

    driver:  options -> brokers (listing) -> positions, admission -> planning -> partitions
    task:    partition -> fetch -> Arrow batches;   Arrow batches -> staging -> commit message

The pure parts (options, offsets, positions, admission, planning) know neither Spark nor Arrow.
"""
