"""Sockets to listen on: of which families, on which port, and what is left when it fails."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from broker.net import limits, sockets

FOUR, SIX = socket.AF_INET, socket.AF_INET6
ANY = sorted(sockets.EVERYWHERE)


def ports(made: list[socket.socket]) -> dict[int, int]:
    """By family; the sockets are closed."""
    found = {int(one.family): one.getsockname()[1] for one in made}
    for one in made:
        one.close()
    return found


class Binds:
    """Stands for binding: goes wrong where `refuse` says so, else on any port."""

    def __init__(self, *refuse: tuple[int, int]) -> None:
        self.refuse = list(refuse)  # (family, error), each once
        self.real = sockets._bind
        self.asked: list[tuple[int, int]] = []
        self.made: list[socket.socket] = []

    def __call__(self, family: int, address: tuple[Any, ...]) -> socket.socket:
        self.asked.append((family, address[1]))
        for one in self.refuse:
            if one[0] == family:
                self.refuse.remove(one)
                raise OSError(one[1], os.strerror(one[1]))
        self.made.append(self.real(FOUR, ("127.0.0.1", 0)))
        return self.made[-1]


@pytest.mark.parametrize("host", ANY)
def test_everywhere_is_both_families_on_one_port(host: str) -> None:
    try:
        sockets._bind(SIX, ("::1", 0)).close()
    except OSError:
        pytest.skip("no IPv6 on this host")
    found = ports(sockets.bound(host, 0))
    assert set(found) == {FOUR, SIX}
    assert len(set(found.values())) == 1
    [port] = set(found.values())
    assert ports(sockets.bound(host, port)) == found


def test_one_address() -> None:
    assert set(ports(sockets.bound("127.0.0.1", 0))) == {FOUR}
    assert set(ports(sockets.bound("localhost", 0))) == {FOUR}


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(socket.gaierror):
        sockets.bound("nobody.invalid", 0)


def test_a_port_that_is_taken() -> None:
    with socket.socket(FOUR) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for host in (*ANY, "127.0.0.1"):
            with pytest.raises(OSError, match="in use") as caught:
                sockets.bound(host, taken.getsockname()[1])
            assert caught.value.errno == errno.EADDRINUSE


def test_a_port_that_is_taken_in_the_other_family(monkeypatch: pytest.MonkeyPatch) -> None:
    binds = Binds((SIX, errno.EADDRINUSE))
    monkeypatch.setattr(sockets, "_bind", binds)
    with pytest.raises(OSError, match="in use"):
        sockets.bound("", 4222)
    assert [one.fileno() for one in binds.made] == [-1]  # nothing is left open


def test_a_free_port_is_free_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    binds = Binds((SIX, errno.EADDRINUSE))
    monkeypatch.setattr(sockets, "_bind", binds)
    made = sockets.bound("", 0)
    assert [family for family, _ in binds.asked] == [FOUR, SIX, FOUR, SIX]
    assert binds.asked[2][1] == 0  # another one
    assert binds.asked[3][1] == made[0].getsockname()[1]
    assert made == binds.made[1:]
    ports(made)
    assert binds.made[0].fileno() == -1


def test_it_does_not_try_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    binds = Binds(*[(SIX, errno.EADDRINUSE)] * 1000)
    monkeypatch.setattr(sockets, "_bind", binds)
    with pytest.raises(OSError, match="in use"):
        sockets.bound("", 0)
    assert len(binds.made) == limits.FREE_PORT_TRIES


@pytest.mark.parametrize("absent", [FOUR, SIX])
def test_a_host_with_one_family(monkeypatch: pytest.MonkeyPatch, absent: int) -> None:
    binds = Binds((absent, errno.EAFNOSUPPORT))
    monkeypatch.setattr(sockets, "_bind", binds)
    assert len(ports(sockets.bound("0.0.0.0", 4222))) == 1
    assert binds.asked == [(FOUR, 4222), (SIX, binds.asked[1][1])]


def test_a_host_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    binds = Binds((FOUR, errno.EAFNOSUPPORT), (SIX, errno.EADDRNOTAVAIL))
    monkeypatch.setattr(sockets, "_bind", binds)
    with pytest.raises(OSError, match="assign requested address") as caught:
        sockets.bound("", 4222)
    assert caught.value.errno == errno.EADDRNOTAVAIL
