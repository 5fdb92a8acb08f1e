"""What the service of NATS Streaming is told, from [stan] and [bridge]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.protocols.stan.options import ChannelLimits, ChannelOverride, StanSettings
from broker.server_topics import sync_words

if TYPE_CHECKING:
    from broker.config import Config


def stan_settings(config: Config) -> StanSettings:
    """The settings of the service, enabled or not."""
    stan = config.stan
    return StanSettings(
        cluster_id=stan.cluster_id,
        discover_prefix=stan.discover_prefix,
        account=stan.account,
        store="memory" if stan.store == "memory" else "file",
        sync=sync_words(stan.sync),
        replace_durable=stan.replace_durable,
        hb_interval_ns=stan.hb_interval_ns,
        hb_timeout_ns=stan.hb_timeout_ns,
        hb_fail_count=stan.hb_fail_count,
        max_channels=stan.max_channels,
        limits=ChannelLimits(
            max_msgs=stan.max_msgs,
            max_bytes=stan.max_bytes,
            max_age_ns=stan.max_age_ns,
            max_subs=stan.max_subs,
            max_inactivity_ns=stan.max_inactivity_ns,
        ),
        channels=tuple(
            (
                entry.pattern,
                ChannelOverride(
                    max_msgs=entry.max_msgs,
                    max_bytes=entry.max_bytes,
                    max_age_ns=entry.max_age_ns,
                    max_subs=entry.max_subs,
                    max_inactivity_ns=entry.max_inactivity_ns,
                ),
            )
            for entry in stan.channel
        ),
        from_live=config.bridge.nats_to_stan,
        to_live=config.bridge.stan_to_nats,
    )
