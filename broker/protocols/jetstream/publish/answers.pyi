"""Sends messages of the server to clients of an account."""

from typing import final

from broker.protocols.nats.accounts.account import Account

@final
class Answers:
    account: Account
    def __init__(self, account: Account) -> None: ...
    def send(
        self, subject: bytes, body: bytes, headers: bytes = b"", reply: bytes = b""
    ) -> int: ...
