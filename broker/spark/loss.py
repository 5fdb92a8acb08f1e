"""What to do about records that are gone: end the query, or tell it in the log and go on."""

from __future__ import annotations

import logging

from broker.spark.errors import LOST, DataLossError

log = logging.getLogger("twinwire.spark")


def lost(text: str, fail: bool) -> None:
    """Some records cannot be read; `fail` is the option `failOnDataLoss`."""
    if fail:
        raise DataLossError(LOST.format(text=text))
    log.warning("%s", text)
