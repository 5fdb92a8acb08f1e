"""NATS keys: text forms, signatures, sealed messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from broker.protocols.nats.auth import nkeys

# Made by the original's libraries for Go.
MADE = json.loads(Path(__file__).with_name("keys_and_tokens.json").read_text())


def test_keys_that_the_original_made() -> None:
    for name, seed in MADE["seeds"].items():
        make = nkeys.CurvePair if "curve" in name else nkeys.KeyPair
        pair = make.from_seed(seed)
        assert (pair.seed, pair.public) == (seed, MADE["publics"][name])
    signature = nkeys.decode_signature(MADE["signature"])
    assert signature is not None
    assert nkeys.KeyPair.from_seed(MADE["seeds"]["user"]).sign(b"nonce") == signature
    assert nkeys.verify(MADE["publics"]["user"], b"nonce", signature)
    ours = nkeys.CurvePair.from_seed(MADE["seeds"]["curve2"])
    assert ours.open(base64.b64decode(MADE["sealed"]), MADE["publics"]["curve1"]) == b"hello"


def test_original_server_id() -> None:
    text = "NDMGPD2HC6BAAUWMUAM2SAIM5T5YUTIHS7LWVQECNEX6WHYZFSSZCAHL"
    kind, raw = nkeys.decode(text)
    assert kind == nkeys.SERVER
    assert nkeys.encode(kind, raw) == text


@pytest.mark.parametrize("kind", "NCOAU")
def test_kinds(kind: str) -> None:
    pair = nkeys.KeyPair(kind)
    assert pair.public[0] == kind
    assert pair.seed[:2] == "S" + kind
    assert (len(pair.public), len(pair.seed)) == (56, 58)
    again = nkeys.KeyPair.from_seed(pair.seed)
    assert (again.public, again.seed) == (pair.public, pair.seed)
    assert nkeys.is_public(kind, pair.public)
    assert not nkeys.is_public("A" if kind != "A" else "U", pair.public)
    assert nkeys.verify(pair.public, b"text", pair.sign(b"text"))
    assert nkeys.KeyPair(kind).public != pair.public


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "U",
        "é" * 56,
        nkeys.KeyPair("U").public[:-1],
        nkeys.KeyPair("U").public + "A",
        nkeys.KeyPair("U").public.lower(),
        nkeys.KeyPair("U").seed,
        "A" + nkeys.KeyPair("U").public[1:],
        "Z" * 56,
    ],
    ids=["empty", "kind", "letters", "short", "long", "lower", "seed", "other kind", "z"],
)
def test_no_public_keys(wrong: str) -> None:
    assert not nkeys.is_any_public(wrong)
    with pytest.raises(ValueError, match="key"):
        nkeys.decode(wrong)
    assert not nkeys.verify(wrong, b"x", bytes(64))


def test_one_wrong_letter_is_noticed() -> None:
    public = nkeys.KeyPair("U").public
    for at in range(len(public)):
        letter = "B" if public[at] != "B" else "C"
        assert not nkeys.is_any_public(public[:at] + letter + public[at + 1 :])


@pytest.mark.parametrize(
    "wrong",
    ["", "SU", nkeys.KeyPair("U").public, "SU7" + nkeys.KeyPair("U").seed[3:], "S" * 58],
    ids=["empty", "kind", "public", "digit", "letters"],
)
def test_no_seeds(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"seed|key"):
        nkeys.KeyPair.from_seed(wrong)


def test_curve_keys_do_not_sign() -> None:
    with pytest.raises(ValueError, match="signs"):
        nkeys.KeyPair.from_seed(nkeys.CurvePair().seed)
    with pytest.raises(ValueError, match="signs"):
        nkeys.KeyPair(nkeys.CURVE)
    with pytest.raises(ValueError, match="curve"):
        nkeys.CurvePair.from_seed(nkeys.KeyPair("U").seed)
    assert not nkeys.verify(nkeys.CurvePair().public, b"x", bytes(64))


def test_forged_signatures() -> None:
    pair = nkeys.KeyPair("U")
    signature = pair.sign(b"nonce")
    assert not nkeys.verify(pair.public, b"other", signature)
    assert not nkeys.verify(nkeys.KeyPair("U").public, b"nonce", signature)
    assert not nkeys.verify(pair.public, b"nonce", b"")
    assert not nkeys.verify(pair.public, b"nonce", signature[:-1])
    for at in range(64):
        wrong = bytearray(signature)
        wrong[at] ^= 1
        assert not nkeys.verify(pair.public, b"nonce", bytes(wrong))


def test_base64_of_signatures() -> None:
    """Trap 41: URL base64 has no padding, standard base64 must have it."""
    raw = b"\xfb\xff\xfe" * 21 + b"\x01"
    url = "-__-" * 21 + "AQ"
    standard = "+//+" * 21 + "AQ=="
    assert nkeys.decode_signature(url) == raw
    assert nkeys.decode_signature(standard) == raw
    assert nkeys.decode_signature(url + "==") is None
    assert nkeys.decode_signature(standard[:-2]) is None
    for wrong in ("A", "a b", "é", "=", "AQ=", "-__+"):
        assert nkeys.decode_signature(wrong) is None


def test_sealed_messages() -> None:
    ours, theirs = nkeys.CurvePair(), nkeys.CurvePair()
    assert nkeys.is_public(nkeys.CURVE, ours.public)
    assert ours.seed.startswith("SX")
    again = nkeys.CurvePair.from_seed(ours.seed)
    assert again.public == ours.public
    sealed = ours.seal(b"secret", theirs.public)
    assert sealed.startswith(b"xkv1")
    assert b"secret" not in sealed
    assert theirs.open(sealed, ours.public) == b"secret"
    assert ours.seal(b"secret", theirs.public) != sealed
    for wrong in (b"", b"xkv1", sealed[:28], b"xkv2" + sealed[4:], sealed[:-1], sealed + b"\0"):
        with pytest.raises(ValueError, match="message"):
            theirs.open(wrong, ours.public)
    with pytest.raises(ValueError, match="opened"):
        theirs.open(sealed, theirs.public)
    with pytest.raises(ValueError, match="curve"):
        theirs.open(sealed, nkeys.KeyPair("U").public)


def test_secrets_do_not_show() -> None:
    pair, curve = nkeys.KeyPair("U"), nkeys.CurvePair()
    assert repr(pair) == f"KeyPair({pair.public})"
    assert repr(curve) == f"CurvePair({curve.public})"
