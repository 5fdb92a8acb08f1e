"""How many clients subscribe to a subject, for those who look for a lost message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.routing.local import listeners, shape

if TYPE_CHECKING:
    from broker.protocols.nats.system_view import AccountView

_WILDCARD = 2


def count_subscribers(account: AccountView, subject: bytes, queue: bytes) -> int:
    """Subscriptions of clients and leafs that a message to the subject would find.

    With wildcards in it: those whose subject it covers. A queue counts its members only.
    """
    if not subject:
        return 0
    if shape(subject) & _WILDCARD:
        found = [
            (group, sink)
            for mine, group, _, sink, *_ in account.router.listing()
            if covers(subject, mine)
        ]
    else:
        found = listeners(account.router, subject)
    peers = {id(peer) for peer in (*account.sessions, *account.leafs)}
    return sum(id(sink) in peers and (not queue or queue == group) for group, sink in found)


def covers(pattern: bytes, subject: bytes) -> bool:
    """Whether every message that `subject` finds is found by `pattern` too."""
    wide, narrow = pattern.split(b"."), subject.split(b".")
    for at, token in enumerate(wide):
        if at >= len(narrow):
            return False
        if token == b">" and at == len(wide) - 1:
            return True
        if narrow[at] == b">" and at == len(narrow) - 1:
            return False
        if token not in (b"*", narrow[at]):
            return False
    return len(wide) == len(narrow)
