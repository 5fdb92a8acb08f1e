"""The section [jetstream], and what a block of a nats-server file changes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.base.units import SECOND
from broker.config.load import ConfigError, load
from broker.engine.config import SyncPolicy
from broker.protocols.jetstream.config import JetStreamConfig
from broker.protocols.nats.settings import JetStream


def test_it_is_enabled_unless_it_is_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "twinwire.toml"
    path.write_text('[jetstream]\nenabled = false\ndomain = "hub"\nsync = "1s"\n')
    found = load(path).jetstream
    assert (found.enabled, found.domain, found.sync) == (False, "hub", SyncPolicy("period", SECOND))
    assert JetStreamConfig().enabled


def test_a_domain_is_one_token(tmp_path: Path) -> None:
    path = tmp_path / "twinwire.toml"
    path.write_text('[jetstream]\ndomain = "a.b"\n')
    with pytest.raises(ConfigError, match="not a token of a subject"):
        load(path)


def test_a_block_replaces_what_it_names() -> None:
    own = JetStreamConfig(domain="hub", max_memory=5, sync=SyncPolicy("none"))
    assert own.merged(None) is own
    merged = own.merged(JetStream(max_memory=7, strict=False))
    assert (merged.domain, merged.max_memory, merged.strict) == ("hub", 7, False)
    assert merged.sync == SyncPolicy("none")
    assert own.merged(JetStream(sync_always=True)).sync == SyncPolicy("always")
    assert own.merged(JetStream(sync_ns=SECOND)).sync == SyncPolicy("period", SECOND)
    assert not own.merged(JetStream(enabled=False)).enabled


def test_subjects_of_the_api_are_no_topics() -> None:
    assert JetStreamConfig().engine_needs().private_subjects == (b"$JS.",)
    assert JetStreamConfig(enabled=False).engine_needs().private_subjects == ()
