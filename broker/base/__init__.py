"""The parts that everything may use: units, kinds of settings, quoting, logging, durable writes,
lock files.

Start with `settings` (how a value of the configuration is read) and `durable` (how files are
written to the disk). It imports nothing of the broker; everything may import it.
"""
