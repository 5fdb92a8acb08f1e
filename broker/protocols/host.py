"""Host: the interface of the server to the services that it runs.

It is separate so that services need not import the server, which imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from broker.base.metrics import Block
    from broker.base.service import Handler, ListenerStats, Service
    from broker.engine.engine import Engine
    from broker.net.http.config import HttpConfig
    from broker.net.listener import Runtime
    from broker.protocols.access import Access
    from broker.routing.router import Router

Section = TypeVar("Section")
Other = TypeVar("Other", bound="Service")


class Sections(Protocol):
    """The part of a Host that a configuration has as well: sources of settings."""

    @property
    def name(self) -> str:
        """The server's name; empty if none is configured."""

    def section(self, kind: type[Section]) -> Section:
        """The section of the configuration with this class."""


class Host(Sections, Protocol):
    """A server as seen by its services."""

    data: Path | None  # the folder of all files; None = everything is in memory
    logs: Path | None  # its subfolder for logs
    access: Access
    router: Router  # of the subjects that all protocols share
    http: HttpConfig  # settings of every HTTP listener
    ports: dict[str, tuple[str, int]]  # of all services that listen already
    services: list[Service]

    @property
    def runtime(self) -> Runtime:
        """State shared by all connections of this loop; available only while the loop runs."""

    @property
    def engine(self) -> Engine:
        """The engine with all logs: available after `prepare`, with open logs after `recover`."""

    def service(self, kind: type[Other]) -> Other | None:
        """Another service by its class; None if it is disabled."""

    def health(self) -> str | None:
        """The problem with the data folder or a log; None if all is well."""

    def problems(self) -> list[tuple[str, str, str]]:
        """Kind, name and reason of everything that is wrong with the data folder."""

    def stats(self) -> list[ListenerStats]:
        """The counters of all listeners at this moment."""

    def settings_in_force(self) -> Iterable[tuple[str, str, str, str]]:
        """Section, key, value as TOML writes it, and origin of each setting; without secrets."""

    def metrics(self) -> list[Block]:
        """The series of the server and of all services, in the order of the page."""

    def pages(self) -> Mapping[str, Handler]:
        """The pages that services add to the monitoring listener."""
