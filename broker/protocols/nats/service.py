"""What the NATS part of a server is told: by [nats], or by a file in nats-server's language."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from broker.protocols.nats import reload
from broker.protocols.nats.conf.reader import read_file
from broker.protocols.nats.conf.text import ConfErrors
from broker.protocols.nats.settings import Settings

if TYPE_CHECKING:
    from broker.config.load import Config
    from broker.protocols.nats.server import NatsServer

log = logging.getLogger("broker.server_nats")


def nats_settings(config: Config) -> Settings:
    """The settings of the NATS server; ConfErrors when its file is wrong.

    A file says everything but where to listen: that is [nats] listen and [monitor] listen. A login
    in [monitor] takes the place of the file's.
    """
    settings = _settings(config)
    if not config.monitor.user:
        return settings
    user, password = config.monitor.user, config.monitor.password
    return replace(settings, monitor_user=user, monitor_password=password)


def _settings(config: Config) -> Settings:
    """Without a login of ours."""
    nats = config.nats
    listen = nats.listen or ("", 0)
    if nats.config_file:
        settings, warnings = read_file(Path(nats.config_file), os.environ)
        for warning in warnings:
            log.warning("%s", warning)
        name = config.server.name or settings.server_name
        return replace(settings, listen=listen, http=config.monitor.listen, server_name=name)
    return Settings(
        listen=listen,
        http=config.monitor.listen,
        server_name=config.server.name,
        max_control_line=nats.max_control_line,
        max_payload=nats.max_payload,
        max_pending=nats.max_pending,
        max_connections=nats.max_connections,
        max_subscriptions=nats.max_subscriptions,
        max_sub_tokens=nats.max_sub_tokens,
        ping_interval_ns=nats.ping_interval_ns,
        ping_max=nats.ping_max,
        write_deadline_ns=nats.write_deadline_ns,
    )


async def reload_nats(server: NatsServer, config: Config) -> None:
    """Read the file again and let it hold; a bad one changes nothing and is told."""
    try:
        settings = await asyncio.to_thread(nats_settings, config)
        plan = reload.plan(server.settings, settings)
        await server.reload(settings)
    except (ConfErrors, reload.ReloadRefused, OSError, ValueError) as problem:
        for line in str(problem).splitlines():
            log.error("NATS settings stay as they were: %s", line)
        return
    for line in plan.lines:
        log.info("%s", line)
