"""Host: what a service may ask of the server that runs it.

It stands alone so that services below the server need not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from broker.base.metrics import Block
    from broker.base.service import Handler, Service
    from broker.engine.engine import Engine
    from broker.net.http.config import HttpConfig
    from broker.net.listener import Runtime
    from broker.protocols.access import Access
    from broker.routing.router import Router

Section = TypeVar("Section")
Other = TypeVar("Other", bound="Service")


class Sections(Protocol):
    """The part of a Host that a configuration has too: settings are made of it."""

    @property
    def name(self) -> str:
        """Of the server; empty: none is configured."""

    def section(self, kind: type[Section]) -> Section:
        """The section of the configuration that is of this class."""


class Host(Sections, Protocol):
    """A server, as its services see it."""

    data: Path | None  # the folder of all files; None = everything is in memory
    logs: Path | None  # the one of logs in it
    access: Access
    router: Router  # the subjects that all protocols share
    http: HttpConfig  # for every HTTP listener
    ports: dict[str, tuple[str, int]]  # of all services that listen by now
    services: list[Service]

    @property
    def runtime(self) -> Runtime:
        """What all connections of this loop share; only while the loop runs."""

    @property
    def engine(self) -> Engine:
        """All logs; from `prepare` on, open from `recover` on."""

    def service(self, kind: type[Other]) -> Other | None:
        """Another service by its class; None when it is off."""

    def health(self) -> str | None:
        """What is wrong with the data folder or a log; None when nothing is."""

    def metrics(self) -> list[Block]:
        """The series of the server and of all services, in the order of the page."""

    def pages(self) -> Mapping[str, Handler]:
        """The pages that services add to the monitoring listener."""
