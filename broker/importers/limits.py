"""Limits of the importers: how much is read and written at a time."""

from __future__ import annotations

from typing import Final

from broker.base.units import KIB, MIB

IMPORT_READ_BYTES: Final = 1 * MIB  # read from a file of the source at once
IMPORT_BATCH_BYTES: Final = 2 * MIB  # appended before the import waits for the disk
IMPORT_BATCH: Final = 4_096  # messages that are appended before the import waits for the disk
IMPORT_STATE_RECORD_MAX: Final = 64 * KIB  # a client or subscription in a streaming store
IMPORT_CIPHER_SAMPLE: Final = 32  # oldest and newest messages that are checked for encryption
IMPORT_QUIET_SECONDS: Final = 3.0  # since the last write to a store whose server takes no lock
