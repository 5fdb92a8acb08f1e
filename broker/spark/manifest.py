"""The archive's manifest under the name that users' programs import; see archive/manifest.py.

It stands alone because it is that name: `from broker.spark.manifest import files`.
"""

from broker.spark.archive.manifest import files

__all__ = ["files"]
