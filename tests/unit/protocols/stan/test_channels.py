"""The names of channels on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from support.engine import Rig

from broker.engine.log.files import escape, load_meta
from broker.protocols.access import APART, STAN, Access
from broker.protocols.stan import channels
from broker.protocols.stan.channels import MARK, name_channels


def test_channels_that_cannot_be_read_now_are_renamed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise their messages would be under a name that nobody asks for."""
    logs, folder = tmp_path / "logs", tmp_path / "stan"
    with Rig(logs) as rig:
        for name in ("a", "b", "c"):
            rig.engine.open_log(name, protocol=STAN, retention="limits")
        rig.close()
    access = Access(stan_to_nsq=False, nsq_to_stan=False)

    def fail_for_b(path: str) -> dict[str, Any] | None:
        if path.endswith("b"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return load_meta(path)

    with monkeypatch.context() as patch:
        patch.setattr(channels, "load_meta", fail_for_b)
        name_channels(logs, folder, access)
    assert {path.name for path in logs.iterdir()} == {escape(APART + "a"), "b", escape(APART + "c")}
    name_channels(logs, folder, access)
    assert {path.name for path in logs.iterdir()} == {escape(APART + name) for name in "abc"}
    assert (folder / MARK).exists()
