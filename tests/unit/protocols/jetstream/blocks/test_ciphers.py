"""Encrypted files decrypt with the server's key only."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jetstream_stores import KEY, unpack

from broker.protocols.jetstream.blocks.ciphers import AssetKey, CipherError, hchacha20
from broker.protocols.jetstream.blocks.records import Block, sum_key


def test_hchacha20() -> None:
    """The example of the draft that defines XChaCha20."""
    key = bytes(range(32))
    nonce = bytes.fromhex("000000090000004a0000000031415927")
    assert hchacha20(key, nonce).hex() == (
        "82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc"
    )


@pytest.mark.parametrize("cipher", ["chacha", "aes"])
def test_the_files_of_a_stream(cipher: str, tmp_path: Path) -> None:
    folder = unpack(cipher, tmp_path) / "jetstream/$G/streams/ORDERS"
    sealed = (folder / "meta.key").read_bytes()
    key = AssetKey(KEY, "$G", "ORDERS", sealed)
    content = (folder / "meta.inf").read_bytes()
    assert b'"name":"ORDERS"' in key.open(content)
    for damaged in (content[:-1], content[:20], content[:30] + b"x" + content[31:]):
        with pytest.raises(CipherError):
            key.open(damaged)
    for server, account, context in (
        ("other", "$G", "ORDERS"),
        (KEY, "A", "ORDERS"),
        (KEY, "$G", "B"),
    ):
        with pytest.raises(CipherError, match="another"):
            AssetKey(server, account, context, sealed)
    with pytest.raises(CipherError, match="no cipher"):
        AssetKey(KEY, "$G", "ORDERS", sealed[:-1])


@pytest.mark.parametrize("cipher", ["chacha", "aes"])
def test_a_block(cipher: str, tmp_path: Path) -> None:
    folder = unpack(cipher, tmp_path) / "jetstream/$G/streams/ORDERS/msgs"
    key = AssetKey(KEY, "$G", "ORDERS:1", (folder / "1.key").read_bytes())
    block = Block(key.block((folder / "1.blk").read_bytes()), sum_key("ORDERS-1"))
    assert len(list(block)) == 20
    assert not block.bad
