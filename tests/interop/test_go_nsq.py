"""go-nsq, the client that nsqd's authors use themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import BrokerFor
from support import Server
from support.authority import Authority
from support.programs import lookupd, nsqd

COUNT = 200
WANTED = sorted(b"%d" % number for number in range(COUNT))
UPGRADES = ["", "snappy=true", "deflate=true,deflate_level=6"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(authority: Authority, broker_for: BrokerFor) -> Server:
    pair = authority.issue("server")
    return broker_for({"nsq": {"tls_cert": str(pair.certificate), "tls_key": str(pair.key)}})


@pytest.mark.parametrize("requeue", ["false", "true"])
@pytest.mark.parametrize("packing", UPGRADES)
@pytest.mark.parametrize("tls", [False, True])
def test_write_and_read(
    go_nsq: Callable[..., object],
    secure: Server,
    authority: Authority,
    uniq: str,
    tls: bool,
    packing: str,
    requeue: str,
) -> None:
    options = [packing] if packing else []
    if tls:
        options += ["tls_v1=true", f"tls_root_ca_file={authority.file}"]
    done = go_nsq(
        nsqd=secure.nsq,
        topic=uniq,
        count=COUNT,
        size=2_000,
        requeue=requeue,
        options=",".join(options),
    )
    assert done.returncode == 0, done.stderr.decode()  # type: ignore[attr-defined]
    assert sorted(done.stdout.split()) == WANTED  # type: ignore[attr-defined]


def test_by_lookup(go_nsq: Callable[..., object], tmp_path: Path) -> None:
    with lookupd(tmp_path) as there, nsqd(tmp_path, f"--lookupd-tcp-address={there.tcp}") as here:
        done = go_nsq(nsqd=here.tcp, lookupd=there.http, topic="t", count=COUNT)
    assert done.returncode == 0, done.stderr.decode()  # type: ignore[attr-defined]
    assert sorted(done.stdout.split()) == WANTED  # type: ignore[attr-defined]
