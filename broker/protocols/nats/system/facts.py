"""Answers of the system account that need nothing but their question."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from broker.base.gotext import go_quote
from broker.base.units import SECOND
from broker.protocols.nats import limits
from broker.protocols.nats.monitoring.process import resident_bytes
from broker.protocols.nats.system import errors
from broker.protocols.nats.system.events import raw_user

if TYPE_CHECKING:
    from broker.protocols.nats.settings import Permissions, Rules
    from broker.protocols.nats.system_view import Json, SessionView


def user_info(session: SessionView, account: str) -> Json:
    """Who a client is to us and what it may do."""
    identity = session.identity
    info: Json = {"user": raw_user(session), "account": account}
    if identity is not None and identity.permissions is not None:
        info["permissions"] = _permissions(identity.permissions)
    if identity is not None and identity.expires_ns:
        seconds = (identity.expires_ns - time.time_ns()) / SECOND
        if int(seconds):
            info["expires"] = int(seconds) * SECOND
    return info


def _permissions(permissions: Permissions) -> Json:
    shown: Json = {
        "publish": _rules(permissions.publish),
        "subscribe": _rules(permissions.subscribe),
    }
    if permissions.responses is not None:
        responses = permissions.responses
        shown["responses"] = {"max": responses.max_msgs, "ttl": responses.expires_ns}
    return shown


def _rules(rules: Rules) -> Json:
    lists = {"allow": rules.allow or (), "deny": rules.deny}
    return {name: [rule.subject for rule in found] for name, found in lists.items() if found}


def expvarz(_options: Json) -> Json:
    """What Go programs tell of themselves; the command line could hold secrets."""
    rss = resident_bytes()
    return {"memstats": {"Alloc": rss, "Sys": rss}, "cmdline": sys.argv[:1]}


def profilez(options: Json) -> Json:
    """There is no profile of Go to be had; the answer says so in its words."""
    name, duration_ns = options["name"], options["duration"]
    text = errors.PROFILE_UNKNOWN.format(go_quote(name.encode("utf-8", "replace")))
    if not name:
        text = errors.PROFILE_NAME
    elif name == "cpu" and not 0 < duration_ns <= limits.NATS_PROFILE_MAX:
        text = errors.PROFILE_DURATION.format(f"{duration_ns / SECOND:g}s")
    return {"profile": None, "error": text}
