"""The section of the bulk door."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from broker.base import settings as kinds
from broker.base.settings import Address
from broker.bulk import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


@dataclass(frozen=True)
class BulkConfig:
    """[bulk]: the HTTP door for pipelines."""

    listen: Address | None = kinds.setting(kinds.address(), Address("127.0.0.1", limits.BULK_PORT))
    tls_cert: str = kinds.setting(kinds.text(), "")
    tls_key: str = kinds.setting(kinds.text(), "")
    tls_client_ca: str = kinds.setting(kinds.text(), "")  # empty: clients show no certificate
    token_file: str = kinds.setting(kinds.text(), "")  # empty: nobody is asked
    allow_anonymous: bool = kinds.setting(kinds.flag(), False)
    partition: int = kinds.setting(kinds.number(-1, limits.BULK_PARTITION_MAX), -1)


class Contradiction(NamedTuple):
    """Two keys of [bulk] that do not go together, and why."""

    key: str
    other: str
    reason: str


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def contradictions(bulk: BulkConfig) -> Iterator[Contradiction]:
    """What is wrong with values that are each right."""
    if bool(bulk.tls_cert) != bool(bulk.tls_key):
        reason = "a certificate and its key go together: give both bulk.tls_cert and bulk.tls_key"
        yield Contradiction("tls_cert", "tls_key", reason)
    if bulk.tls_client_ca and not bulk.tls_cert:
        reason = "needs a certificate: give bulk.tls_cert and bulk.tls_key"
        yield Contradiction("tls_client_ca", "tls_cert", reason)
    if bulk.allow_anonymous and bulk.token_file:
        reason = "nobody is anonymous where tokens are asked for: give one of the two"
        yield Contradiction("allow_anonymous", "token_file", reason)
    if (
        bulk.listen is not None
        and not is_loopback(bulk.listen.host)
        and not bulk.token_file
        and not bulk.allow_anonymous
    ):
        reason = (
            f"{bulk.listen} can be reached from elsewhere and every topic read there: give "
            "bulk.token_file, or say bulk.allow_anonymous = true"
        )
        yield Contradiction("listen", "token_file", reason)
