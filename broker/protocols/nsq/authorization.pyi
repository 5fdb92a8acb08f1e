"""What one connection may do, where auth servers are asked."""

from typing import final

from broker.protocols.nsq.auth import Grant

@final
class AuthState:
    grant: Grant | None
