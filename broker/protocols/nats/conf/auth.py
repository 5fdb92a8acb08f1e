"""Blocks of a configuration with logins and permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.base.gotext import go_quote
from broker.base.units import SECOND
from broker.protocols.nats import limits
from broker.protocols.nats.accounts.subjects import is_subject
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.conf.fields import INT32
from broker.protocols.nats.settings import (
    Authorization,
    Callout,
    Permissions,
    RateLimit,
    ResponseRule,
    Rules,
    SubjectRule,
    User,
)

if TYPE_CHECKING:
    from broker.protocols.nats.conf.fields import Block, Mistakes
    from broker.protocols.nats.conf.text import Value

CONNECTION_TYPES: Final = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS"}
)


class Logins:
    """The users and nkeys read so far with their positions, to detect duplicates."""

    def __init__(self, mistakes: Mistakes) -> None:
        self.mistakes = mistakes
        self.seen: dict[str, Value] = {}
        self.users_array: Value | None = None  # an array of users

    def add(self, name: str, value: Value) -> None:
        """Add a user."""
        first = self.seen.setdefault(name, value)
        if first is not value:
            position = f"{first.file}:{first.line}"
            self.mistakes.add(value, f"{name!r} is already defined at {position}")


# --- permissions


def permissions(block: Block) -> Permissions:
    """Permissions to publish and subscribe."""
    publish = _rules(block, "publish", "pub", "import", queues=False)
    subscribe = _rules(block, "subscribe", "sub", "export", queues=True)
    responses = _responses(block)
    if responses is not None and publish.allow is None:
        publish = Rules((), publish.deny)
    block.done()
    return Permissions(publish, subscribe, responses)


def optional_permissions(block: Block, *names: str) -> Permissions | None:
    """The permissions in such a block; None if it is missing."""
    found = block.block(*names)
    if found is None or not isinstance(found.value.it, dict):
        return None
    return permissions(found)


def _rules(block: Block, *names: str, queues: bool) -> Rules:
    entry = block.peek(*names)
    if entry is None:
        return Rules()
    if not isinstance(entry.it, dict):
        return Rules(allow=subject_rules(block, *names, queues=queues))
    inner = block.block(*names)
    assert inner is not None
    allow = subject_rules(inner, "allow", queues=queues)
    deny = subject_rules(inner, "deny", queues=queues)
    inner.done()
    return Rules(allow, deny or ())


def subject_rules(block: Block, *names: str, queues: bool) -> tuple[SubjectRule, ...] | None:
    """Subjects with an optional queue group; None if the list is empty, which allows all."""
    entry = block.peek(*names)
    found = []
    for text, value in block.each_text(*names):
        parts = text.split()
        if is_subject(text):
            found.append(SubjectRule(text))
        elif len(parts) != 2 or not all(map(is_subject, parts)):
            block.mistakes.add(value, f"{names[0]}: {text!r} is not a subject")
        elif not queues:
            reason = f"{names[0]}: {text!r} names a queue group, which only a subscription has"
            block.mistakes.add(value, reason)
        else:
            found.append(SubjectRule(*parts))
    if entry is not None and entry.it == [] and not names[0].startswith("deny"):
        block.mistakes.note(entry, f"{names[0]}: an empty array allows everything")
    return tuple(found) or None


def _responses(block: Block) -> ResponseRule | None:
    entry = block.peek("allow_responses", "publish_allow_responses")
    if entry is None or not isinstance(entry.it, dict):
        flag = block.flag("allow_responses", "publish_allow_responses")
        return ResponseRule() if flag else None
    inner = block.block("allow_responses", "publish_allow_responses")
    assert inner is not None
    default = ResponseRule()
    count = inner.number("max", "max_msgs", "max_messages", "max_responses", high=INT32)
    expires = inner.duration(
        "expires", "expiration", "ttl", default=default.expires_ns, seconds="no", never=True
    )
    inner.done()
    return ResponseRule(max(count, -1) or default.max_msgs, expires)


# --- users


def users(block: Block, logins: Logins, count_empty: bool = False) -> tuple[User, ...]:
    """The array of users of an account or of the server. `count_empty`: an empty array conflicts
    with a single user, too."""
    entry = block.peek("users")
    found = []
    for one in block.blocks("users", what="a user"):
        user = _user(one)
        if user is not None:
            logins.add(user.nkey or user.name, one.value)
            found.append(user)
    if entry is not None and isinstance(entry.it, list) and (found or count_empty):
        logins.users_array = logins.users_array or entry
    return tuple(found)


def _user(block: Block) -> User | None:
    before = len(block.mistakes.errors)
    nkey, name = block.text("nkey"), block.text("user", "username")
    password = block.text("password", "pass")
    user = User(
        name=name,
        password=password,
        nkey=nkey,
        permissions=optional_permissions(block, "permissions", "permission", "authorization"),
        connection_types=_connection_types(block),
        proxy_required=block.flag("proxy_required"),
        rate=rate_limits(block),
    )
    block.done()
    if not nkey and not name:
        if len(block.mistakes.errors) == before:
            block.wrong("a user has a name or an nkey")
        return None
    if nkey and (name or password):
        block.wrong("who has an nkey has neither name nor password")
    if nkey and not nkeys.is_public(nkeys.USER, nkey):
        block.wrong("nkey: not the public key of a user (U...)", "nkey")
    return user


def _connection_types(block: Block) -> frozenset[str] | None:
    names = ("allowed_connection_types", "connection_types", "clients")
    if not block.has(*names):
        return None
    found = []
    for text, value in block.each_text(*names):
        found.append(text.upper())
        if text.upper() not in CONNECTION_TYPES:
            block.mistakes.add(value, f"{names[0]}: unknown type {text!r}")
    return frozenset(found) or None


def rate_limits(block: Block) -> RateLimit | None:
    """Publish rate limits: an extension of Twinwire."""
    inner = block.block("rate_limits")
    if inner is None:
        return None
    rate = RateLimit(
        msgs_per_second=inner.number("msgs", low=0, high=INT32),
        bytes_per_second=inner.number("bytes", low=0),
        burst_ns=inner.duration("burst", default=limits.NATS_RATE_BURST, seconds="no"),
    )
    inner.done()
    return rate if rate.msgs_per_second or rate.bytes_per_second else None


# --- the block `authorization`


def authorization(block: Block, logins: Logins) -> Authorization:
    """The server's block `authorization`; users of accounts were read before it."""
    result = Authorization(
        user=block.text("user", "username"),
        password=block.text("password", "pass"),
        token=block.text("token"),
        timeout_ns=_login_timeout(block),
        users=users(block, logins, count_empty=True),
        default_permissions=optional_permissions(
            block, "default_permissions", "default_permission", "permissions"
        ),
        callout=_callout(block),
        proxy_required=block.flag("proxy_required"),
    )
    block.done()
    if result.token and (result.user or result.password):
        reason = "token: cannot be combined with a user and password"
        block.wrong(reason, "token")
    for text, names in (result.user, ("user", "username")), (result.token, ("token",)):
        if text and logins.users_array is not None:
            other = f"{logins.users_array.file}:{logins.users_array.line}"
            block.wrong(
                f"{names[0]}: cannot be combined with the array of users at {other}", *names
            )
    return result


def _login_timeout(block: Block) -> int:
    """How long a login may take, in nanoseconds. A very long time is a warning, because it is
    probably a mistake."""
    entry = block.peek("timeout")
    found = block.duration("timeout", default=0, seconds="fraction")
    if entry is not None and found > limits.NATS_AUTH_TIMEOUT_ADVISED:
        block.mistakes.warn(entry, f"timeout: {found / SECOND:g} seconds are long, 60 is advised")
    return found


def trusted_proxies(root: Block) -> tuple[str, ...]:
    """The public keys of the proxies in the block `proxies`."""
    inner = root.block("proxies")
    if inner is None:
        return ()
    found = []
    for one in inner.blocks("trusted", what="a trusted proxy"):
        key = one.text("key", "public_key")
        if nkeys.is_any_public(key):
            found.append(key)
        else:
            one.wrong(f"invalid proxy key {go_quote(key)}", "key", "public_key")
        one.done()
    inner.done()
    return tuple(dict.fromkeys(found))


def simple(block: Block) -> Authorization:
    """The block of a listener: one user or a token."""
    result = Authorization(
        user=block.text("user", "username"),
        password=block.text("password", "pass"),
        token=block.text("token"),
        timeout_ns=_login_timeout(block),
    )
    block.done()
    return result


def _callout(block: Block) -> Callout | None:
    inner = block.block("auth_callout", "auth_hook")
    if inner is None or not isinstance(inner.value.it, dict):
        return None
    before = len(inner.mistakes.errors)
    issuer = inner.key(nkeys.ACCOUNT, "issuer")
    auth_users = inner.texts("auth_users", "users", only_array=True)
    account = inner.text("account", "acc")
    xkey = inner.key(nkeys.CURVE, "xkey", "key")
    accounts = inner.texts("allowed_accounts", only_array=True)
    inner.done()
    if len(inner.mistakes.errors) == before:
        if not issuer:
            inner.wrong("auth_callout: issuer is missing")
        if not auth_users:
            inner.wrong("auth_callout: auth_users are missing")
    default = Callout("")
    return Callout(issuer, account or default.account, auth_users, xkey, accounts)
