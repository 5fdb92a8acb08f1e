"""Decides which client may read or write a log, for all protocols."""

from typing import final

from broker.engine.log.log import Log
from broker.routing.router import Router
from broker.runtime.interfaces import Session

APART: str
STAN: str
INBOX: str
READ: int
WRITE: int

@final
class Access:
    nsq_to_nats: bool
    nats_to_nsq: bool
    stan_to_nats: bool
    nats_to_stan: bool
    stan_to_nsq: bool
    nsq_to_stan: bool
    def __init__(
        self,
        *,
        nsq_to_nats: bool = True,
        nats_to_nsq: bool = True,
        stan_to_nats: bool = True,
        nats_to_stan: bool = True,
        stan_to_nsq: bool = True,
        nsq_to_stan: bool = True,
    ) -> None: ...
    @property
    def is_apart(self) -> bool: ...
    def log_name(self, channel: str) -> str: ...
    def may_topic(self, log: Log, right: int) -> bool: ...
    def may_use_stream(self, right: int) -> bool: ...
    def crossings(self, log: Log) -> tuple[bool, bool]: ...
    def may_use(
        self, session: Session, space: Router, right: int, log: Log | None, channel: str
    ) -> bool: ...
    def may_use_inbox(self, session: Session, space: Router, inbox: str) -> bool: ...
    def is_own(self, session: Session, owner: str | None) -> bool: ...
