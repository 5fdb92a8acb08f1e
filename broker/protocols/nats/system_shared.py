"""What every account takes from the system account without being configured to."""

from __future__ import annotations

from typing import Final

from broker.protocols.nats.settings import Export, Import

USER_INFO: Final = "$SYS.REQ.USER.INFO"


def imports_of(account: str, system: str) -> tuple[Import, ...]:
    """The services that an account can ask about itself, by their names there."""
    user = Import(system, f"$SYS.REQ.USER.{account}.INFO", service=True, to=USER_INFO, share=True)
    if account == system:
        return (user,)
    connz, statz = (f"$SYS.REQ.ACCOUNT.{account}.{name}" for name in ("CONNZ", "STATZ"))
    return (
        Import(system, connz, service=True, to="$SYS.REQ.ACCOUNT.PING.CONNZ"),
        Import(system, connz, service=True, to="$SYS.REQ.SERVER.PING.CONNZ"),
        Import(system, statz, service=True, to="$SYS.REQ.ACCOUNT.PING.STATZ"),
        user,
    )


def exports_of_system() -> tuple[Export, ...]:
    """What the system account gives for that."""
    own = "$SYS.REQ.ACCOUNT.*."
    return (
        Export(own + "CONNZ", service=True, response_type="stream", token_position=4),
        Export(own + "STATZ", service=True, response_type="stream", token_position=4),
        Export("$SYS.DEBUG.SUBSCRIBERS", service=True),
        Export("$SYS.REQ.USER.*.INFO", service=True),
    )
