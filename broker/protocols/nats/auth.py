"""Makes the authenticator that a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.protocols.nats.local_auth import LocalAuth
from broker.protocols.nats.passwords import Passwords

if TYPE_CHECKING:
    from broker.protocols.nats.login import Authenticator
    from broker.protocols.nats.settings import Settings


def build(settings: Settings, passwords: Passwords | None = None) -> Authenticator:
    """Whoever decides about logins; `passwords` outlives reloads."""
    return LocalAuth(settings, passwords or Passwords())
