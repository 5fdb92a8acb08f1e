"""Digests of configuration files: those of nats-server 2.15.2."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.servers.originals import nats_server_on_path

from broker.protocols.nats.conf.reader import read_text

TEXTS = {
    "port: 4333\n": "sha256:5942f6739f1572892ba80b954eee212713f172258629e16936dfeeae8e2eb80d",
    'port: 4333\nserver_name: "x<y"\n': (
        "sha256:7128f3e3e7fd2d46bab3303b11e979c44116c3f37ae56765898a75f1f541b35b"
    ),
    "max_payload: 1mb # one\nping_interval: '2s'\n": (
        "sha256:51de50a9945eb4c7faa685531a38abf1179dae353c96b5fabf15d36effaf6045"
    ),
    "authorization { user: a, password: b, timeout: 1.5 }\nhttp: localhost:8222\ndebug: true": (
        "sha256:32f6ba2cc097b0ae55b1740a1f4062ffde76a7a8a49be2cca4865d2f5ffad5b5"
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_digest(text: str) -> None:
    settings, _warnings = read_text(text, {})
    assert settings.digest == TEXTS[text]


def test_order_comments_and_variables_make_no_difference() -> None:
    one, _ = read_text("debug: true # why\nport: 4333\n", {})
    other, _ = read_text("port: $PORT\n\ndebug: true\n", {"PORT": "4333"})
    assert one.digest == other.digest


@pytest.mark.skipif(not nats_server_on_path(), reason="no nats-server")
def test_the_original_says_the_same(tmp_path: Path) -> None:
    text = (
        'server_tags: ["a&b", c]\naccounts { A { users: [{user: u, password: "p"}] }}\n'
        "lame_duck_duration: 30s\nmax_control_line: 4kb\n"
    )
    path = tmp_path / "n.conf"
    path.write_text(text)
    settings, _ = read_text(text, {})
    done = subprocess.run(
        ["nats-server", "-t", "-c", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert settings.digest in done.stderr
