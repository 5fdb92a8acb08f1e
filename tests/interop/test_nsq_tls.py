"""HTTPS, and certificates that are exchanged while the server runs."""

from __future__ import annotations

import hashlib
import shutil
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Server
from support.authority import Authority
from support.clients.http import request
from support.clients.nsq import Wire
from support.servers.processes import Address

pytestmark = pytest.mark.only_ours


def shown(address: Address, authority: Authority) -> str:
    """Which certificate the NSQ listener shows."""
    with Wire(address) as wire:
        wire.identify(authority.client(), tls_v1=True)
        assert isinstance(wire.socket, ssl.SSLSocket)
        der = wire.socket.getpeercert(binary_form=True)
        assert der is not None
        return hashlib.sha256(der).hexdigest()


def shown_by_https(port: int) -> str:
    pem = ssl.get_server_certificate(("127.0.0.1", port))
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def test_https_and_reload(start_broker: Callable[..., Server], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    server = start_broker(
        {
            "nsq": {
                "tls_cert": str(pair.certificate),
                "tls_key": str(pair.key),
                "https": "127.0.0.1:0",
                "tls_required": "true",
            }
        }
    )
    refusal = request(server.nsq_http, "GET", "/stats")
    assert refusal.status == 403
    port = refusal.json["https_port"]
    url = f"https://localhost:{port}/ping"
    with urllib.request.urlopen(url, context=authority.client()) as answer:
        assert answer.read() == b"OK"

    first = shown(server.nsq, authority)
    assert shown_by_https(port) == first
    with Wire(server.nsq) as old:
        old.identify(authority.client(), tls_v1=True)
        authority.issue("server")
        server.signal(signal.SIGHUP)
        server.await_log("certificates reloaded")
        second = shown(server.nsq, authority)
        assert second != first
        assert shown_by_https(port) == second
        old.send(b"NOP\n")
        assert old.ask(b"PUB t\n\x00\x00\x00\x01x")[1] == b"OK"  # it keeps what it has

    pair.certificate.write_text("broken")
    server.signal(signal.SIGHUP)
    server.await_log("certificates not reloaded")
    assert shown(server.nsq, authority) == second
    assert shown_by_https(port) == second


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_renegotiation_is_refused(start_broker: Callable[..., Server], tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("server")
    files = {"tls_cert": str(pair.certificate), "tls_key": str(pair.key)}
    server = start_broker({"nsq": {**files, "https": "127.0.0.1:0", "tls_required": "true"}})
    port = request(server.nsq_http, "GET", "/ping").json["https_port"]
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2"],
        input=b"R\n",
        capture_output=True,
        check=False,
        timeout=30,
    )
    said = done.stdout + done.stderr
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said
