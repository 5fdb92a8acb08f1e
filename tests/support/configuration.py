"""Configuration files of tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.config.load import ConfigError, load

# A broker for NATS clients alone; tests append sections.
NATS = """
[server]
data = "{data}"
[nats]
listen = "127.0.0.1:0"
[monitor]
listen = ""
[console]
listen = ""
[nsq]
listen = ""
http = ""
"""
NATS_AND_BULK = NATS + '[bulk]\nlisten = "127.0.0.1:0"\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a configuration file."""

    def write(text: str) -> Path:
        path = tmp_path / "t.toml"
        path.write_text(text)
        return path

    return write


def mistakes(*args: Any, **kwargs: Any) -> list[str]:
    """The lines of the error of a configuration that cannot be loaded."""
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    return str(caught.value).splitlines()
