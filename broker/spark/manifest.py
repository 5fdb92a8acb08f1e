"""The public name of the archive's manifest, `from broker.spark.manifest import files`.

It is separate because users' programs import this name; the code is in archive/manifest.py.
"""

from broker.spark.archive.manifest import files

__all__ = ["files"]
