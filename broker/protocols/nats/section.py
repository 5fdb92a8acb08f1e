"""The settings from [nats] and [monitor], and from the file that [nats] may name.

It is separate, because most brokers use no such file, and its reader is slow to import.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from broker.protocols.nats.settings import MonitorConfig, Settings

if TYPE_CHECKING:
    from broker.protocols.host import Sections

log = logging.getLogger("broker.server_nats")


def nats_settings(config: Sections) -> Settings:
    """The settings of the NATS server; ConfErrors if its file is invalid.

    A file defines everything but addresses, which are [nats] listen and [monitor] listen. A login
    in [monitor] replaces that of the file.
    """
    settings, monitor = config.section(Settings), config.section(MonitorConfig)
    if settings.config_file:
        from broker.protocols.nats.conf.reader import read_file

        found, warnings = read_file(Path(settings.config_file), os.environ)
        for warning in warnings:
            log.warning("%s", warning)
        settings = replace(found, listen=settings.listen, config_file=settings.config_file)
    name = config.name or settings.server_name
    settings = replace(settings, http=monitor.listen, server_name=name)
    if not monitor.user:
        return settings
    return replace(settings, monitor_user=monitor.user, monitor_password=monitor.password)
