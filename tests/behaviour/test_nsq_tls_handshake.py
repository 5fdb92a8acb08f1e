"""A TLS handshake that never ends costs its own connection, and not for long."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.authority import Authority
from support.live.nsq import Client, on_uvloop, opened

from broker.base.units import MS
from broker.protocols.nsq import limits


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NSQ_TLS_TIMEOUT", 50 * MS)


@on_uvloop
async def test_silence_instead_of_a_handshake(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    pair = Authority(tmp_path / "keys").issue("server")
    files = {"tls_cert": str(pair.certificate), "tls_key": str(pair.key)}
    async with opened(tmp_path / "logs", settings=files) as listener:
        silent, other = await Client.dial(listener), await Client.dial(listener)
        asked = b'{"feature_negotiation":true,"tls_v1":true}'
        kind, _ = await silent.ask(b"IDENTIFY\n" + len(asked).to_bytes(4, "big") + asked)
        assert kind == 0
        silent.writer.write(b"\x16\x03\x01")  # a beginning
        assert await silent.frame() == (
            1,
            b"E_IDENTIFY_FAILED IDENTIFY failed tls: handshake timed out",
        )
        assert await silent.reader.read() == b""
        assert await other.ask(b"PUB t\n\0\0\0\1x") == (0, b"OK")
