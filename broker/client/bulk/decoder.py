"""The decoder there is: the compiled one, or the same in Python where none can be loaded."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.client.bulk.decode import Frame
else:
    try:
        from broker.client.bulk.decode import Frame
    except ImportError as missing:
        from broker.client.bulk.decode_python import Frame

        warnings.warn(
            f"the compiled decoder cannot be loaded ({missing}): records are decoded by Python, "
            "many times slower. Install the twinwire wheel where this runs",
            RuntimeWarning,
            stacklevel=2,
        )

__all__ = ["Frame"]
