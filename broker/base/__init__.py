"""What every part may use: units, kinds of settings, quoting, logging, durable writes, lock files.

Start with `settings` (how a value of the configuration is read) and `durable` (how a file reaches
the disk). It imports nothing of the broker; everything may import it.
"""
