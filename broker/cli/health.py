"""`twinwire health`: checks the broker that runs with the same configuration."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

from broker.base.redact import redacted
from broker.base.settings import Address, parse_address
from broker.config.load import ConfigError, load
from broker.server import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.config.config import Config

HEALTHY: Final = 200
# Clients use loopback for an address that means every interface.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_BODY_MAX: Final = 64 * 1024


def reachable(address: Address) -> Address:
    """The address for a client on this machine."""
    return Address(_LOOPBACK.get(address.host, address.host), address.port)


class Probe:
    """One request for the state of a broker."""

    def __init__(self, address: Address, path: str, login: str = "") -> None:
        """`login`: USER:PASSWORD; with it the answer contains reasons."""
        self.address = reachable(address)
        self.path = path
        self.headers = {"Host": str(self.address)}
        if login:
            self.headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def ask(self, timeout_s: float, most: int = _BODY_MAX) -> tuple[int, str]:
        """Status and text of the answer, of at most `most` bytes. OSError, HTTPException."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout_s)
        try:
            connection.request("GET", self.path, headers=self.headers)
            response = connection.getresponse()
            return response.status, response.read(most).decode("utf-8", "replace").strip()
        finally:
            connection.close()


def probes_of(config: Config) -> list[Probe]:
    """The monitoring page and nsqd's /ping, as far as their listeners are enabled."""
    probes = []
    monitor = config.monitor
    if monitor.listen is not None:
        login = f"{monitor.user}:{monitor.password}" if monitor.user else ""
        probes.append(Probe(Address(*monitor.listen), "/healthz", login))
    if config.nsq.http is not None:
        probes.append(Probe(config.nsq.http, "/ping"))
    return probes


def ask_first(probes: Sequence[Probe], timeout_s: float) -> tuple[int, str]:
    """The answer to the first probe. The second one is used if nothing listens at the first
    address, as with the command `nsqd`: `serve` does not start without its listeners."""
    try:
        return probes[0].ask(timeout_s)
    except ConnectionRefusedError:
        for probe in probes[1:]:
            with contextlib.suppress(ConnectionRefusedError):
                return probe.ask(timeout_s)
        raise


def probe_of_url(url: str) -> Probe:
    """The probe for a URL such as http://127.0.0.1:4151/ping. UsageError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.netloc:
        raise click.UsageError(f"invalid URL {url!r}: expected http://HOST:PORT/PATH")
    try:
        address = parse_address(parts.netloc)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Probe(address, parts.path or "/healthz")


@click.command("health")
@click.argument("url", required=False)
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file, as for serve."
)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1), default=2.0, show_default=True,
    help="Seconds to wait for the answer.",
)  # fmt: skip
def health(url: str | None, file: Path | None, timeout_s: float) -> None:
    """Exit with 0 if the broker is healthy, else with 1; for probes of containers.

    The broker is found by the configuration that `serve` would read, or by the URL of its /healthz
    or /ping.
    """
    try:
        probes = [probe_of_url(url)] if url is not None else probes_of(load(file, os.environ))
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    if not probes:
        raise click.UsageError("neither [monitor] listen nor [nsq] http is enabled: give a URL")
    try:
        status, text = ask_first(probes, timeout_s)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise click.ClickException(f"{probes[0].address} does not answer: {reason}") from None
    click.echo(redacted(text))
    sys.exit(0 if status == HEALTHY else 1)
