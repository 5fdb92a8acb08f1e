"""The rights of one connection, if auth servers are configured."""

from typing import final

from broker.protocols.nsq.auth import Grant

@final
class AuthState:
    grant: Grant | None
