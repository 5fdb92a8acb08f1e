"""nats.go, the client of nats-server's authors, in one session for each way to log in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.authority import Authority
from support.nats_file import FileServer, StartServer

from broker.protocols.nats.auth.nkeys import KeyPair

PERMISSIONS = "permissions: {publish: {deny: secret}, subscribe: {deny: secret}}"


def session(go_nats: Callable[..., object], server: FileServer, **flags: object) -> None:
    scheme = "tls" if "ca" in flags else "nats"
    done = go_nats(url=f"{scheme}://{server.address}", **flags)
    assert done.returncode == 0, done.stderr.decode()  # type: ignore[attr-defined]
    assert done.stdout == b"ok\n"  # type: ignore[attr-defined]


def test_an_open_server(go_nats: Callable[..., object], start_nats: StartServer) -> None:
    session(go_nats, start_nats(""))


def test_a_token(go_nats: Callable[..., object], start_nats: StartServer) -> None:
    session(go_nats, start_nats("authorization { token: t0ken }\n"), token="t0ken")


def test_an_account_with_permissions(
    go_nats: Callable[..., object], start_nats: StartServer
) -> None:
    server = start_nats(
        f"accounts {{ A: {{ users: [{{user: u, password: p, {PERMISSIONS}}}] }} }}\n"
    )
    session(go_nats, server, user="u", password="p", denied="secret")


def test_an_nkey(go_nats: Callable[..., object], start_nats: StartServer, tmp_path: Path) -> None:
    pair = KeyPair("U")
    seed = tmp_path / "user.nk"
    seed.write_bytes(pair.seed if isinstance(pair.seed, bytes) else pair.seed.encode())
    server = start_nats(f"authorization {{ users: [{{nkey: {pair.public}}}] }}\n")
    session(go_nats, server, seed=seed)


def test_tls(go_nats: Callable[..., object], start_nats: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    server = start_nats(f"tls {{ cert_file: {pair.certificate}, key_file: {pair.key} }}\n")
    session(go_nats, server, ca=authority.file)
