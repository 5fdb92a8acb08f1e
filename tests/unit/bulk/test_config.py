"""[bulk]: what does not go together, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.base.settings import Address
from broker.config.load import ConfigError, load


def read(path: Path, text: str):
    file = path / "t.toml"
    file.write_text("[bulk]\n" + text)
    return load(file).bulk


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.9.0.1:1", "[::1]:1", "localhost:1"])
def test_this_machine_may_do_without_tokens(tmp_path: Path, listen: str) -> None:
    assert read(tmp_path, f'listen = "{listen}"\n').listen is not None


@pytest.mark.parametrize("listen", [":4171", "0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1"])
def test_others_are_asked_for_tokens(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        read(tmp_path, f'listen = "{listen}"\n')
    assert read(tmp_path, f'listen = "{listen}"\ntoken_file = "t"\n').token_file == "t"
    assert read(tmp_path, f'listen = "{listen}"\nallow_anonymous = true\n').allow_anonymous


@pytest.mark.parametrize("off", ["", "off"])
def test_it_can_be_off(tmp_path: Path, off: str) -> None:
    assert read(tmp_path, f'listen = "{off}"\n').listen is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('tls_cert = "c"\n', "needs its key"),
        ('tls_key = "k"\n', "needs its key"),
        ('tls_client_ca = "a"\n', "needs a certificate"),
        ('token_file = "t"\nallow_anonymous = true\n', "give one of the two"),
        ("partition = -2\n", "must be between -1"),
        ('listen = "127.0.0.1:4150"\n', "is also the address of"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(tmp_path, text)


def test_it_has_a_flag() -> None:
    assert load(None, {}, {"--bulk": "127.0.0.1:7"}).bulk.listen == Address("127.0.0.1", 7)
