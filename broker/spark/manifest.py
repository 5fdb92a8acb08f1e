"""The public name of the archive's manifest, `from broker.spark.manifest import files`.

This is a separate module because users' programs import this name; the code is in
archive/manifest.py.
"""

from broker.spark.archive.manifest import files

__all__ = ["files"]
