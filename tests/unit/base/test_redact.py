"""Secrets in texts that are logged or shown."""

from __future__ import annotations

import io
import logging

import pytest

from broker.base import logs
from broker.base.redact import redacted
from broker.config.load import ConfigError, load
from broker.protocols.nsq.http.debug import _without_secrets

S = "s3cr3t-Hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"http://127.0.0.1:4181/auth?common_name=&secret={S}&tls=false",
        f"URL('https://auth.example/nsq?access_token={S}')",
        f"https://user:{S}@auth.example/nsq",
        f"nats-leaf://{S}@hub.example:7422",
        f"Authorization: Bearer {S}",
        f"{{'Authorization': 'Basic {S}'}}",
        f"b'authorization: {S}'",
        f"Bearer {S}",
        f"--auth={S} --password={S} API_KEY={S}",
        f"password={S} client_secret={S}",
        f"url=http://h/auth?token={S} x-auth={S}",
    ],
)
def test_secrets_go(text: str) -> None:
    assert S not in redacted(text)
    assert "***" in redacted(text)
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "listening on http://127.0.0.1:4151/stats?topic=orders",
        "client 127.0.0.1:5000 says a@b, the bearer of a token",
        "max_sub_tokens: 7, authorized=yes",
    ],
)
def test_all_else_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.timeout(120)
@pytest.mark.parametrize("behind", ["", "=", '"'])
@pytest.mark.parametrize("before", ["", "authorization: ", "bearer"])
@pytest.mark.parametrize(
    "part",
    [
        "-",
        "token-",
        "-a",
        "=",
        "a=",
        "token",
        '"',
        " ",
        "://",
        "://a:",
        "authorization:",
        "bearer ",
    ],
)
def test_a_text_is_read_once(part: str, before: str, behind: str) -> None:
    """Clients choose what stands in it: a rule that tried every way to read it would take hours."""
    text = before + part * (65_536 // len(part)) + behind
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize("style", ["text", "json"])
def test_logs(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root, stream = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    level = root.level
    try:
        logs.setup("debug", style, utc=True, stream=stream)
        try:
            raise ValueError(f"http://h/auth?secret={S}")
        except ValueError:
            extra = logs.fields(server=f"http://u:{S}@h/", token=S if style == "text" else "")
            logging.getLogger("x").exception("asked with Bearer %s", S, extra=extra)
    finally:
        root.setLevel(level)
    assert "ValueError" in stream.getvalue()
    assert S not in stream.getvalue()


def test_what_is_wrong_with_a_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"TWINWIRE_MONITOR_PASSWORD": f"{S}\0"})
    assert S not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load(None, {"TWINWIRE_NSQ_AUTH_HTTP_ADDRESSES": f"ftp://u:{S}@h/x?secret={S}"})
    assert "auth_http_addresses" in str(caught.value)
    assert S not in str(caught.value)


def test_command_lines() -> None:
    words = ["nats-server", "--pass", S, f"--auth={S}", "-p", "4222"]
    assert [redacted(word) for word in _without_secrets(words)] == [
        "nats-server",
        "--pass",
        "***",
        "--auth=***",
        "-p",
        "4222",
    ]
