"""`--ship-code`: executors get what tasks need of this package from the driver.

For clusters whose machines have Python, PyArrow and PySpark of the driver's versions, but not this
package. It goes as an archive that Spark unpacks, not as a zip on the path: compiled modules cannot
be loaded from a zip.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import broker

NAME: Final = "twinwire-code"
_WANTED: Final = (
    "__init__.py", "base/*.py", "client/__init__.py",
    "client/bulk/**/*.py", "client/bulk/**/*.so", "spark/**/*.py",
)  # fmt: skip


def files() -> Iterator[tuple[Path, str]]:
    """(file, name in the archive)."""
    package = Path(broker.__file__).parent
    for pattern in _WANTED:
        for path in sorted(package.glob(pattern)):
            yield path, str(Path("broker") / path.relative_to(package))
    source = package.parent / "pyspark_twinwire"
    for path in sorted(source.glob("*.py")):
        yield path, str(Path(source.name) / path.name)


def pack(folder: Path) -> Path:
    """The archive, made in a folder."""
    path = folder / f"{NAME}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in files():
            archive.write(file, name)
    return path


def settings(path: Path) -> dict[str, str]:
    """What Spark must be told to use it."""
    return {"spark.archives": f"{path}#{NAME}", "spark.executorEnv.PYTHONPATH": NAME}
