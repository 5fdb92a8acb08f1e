"""Blocks of a configuration: WebSocket listener, leaf node listener, and remotes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from broker.base.patterns import lazy_pattern
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.conf import auth
from broker.protocols.nats.conf.fields import Block, go_duration, kind_of, words
from broker.protocols.nats.conf.tls import optional_tls
from broker.protocols.nats.leafnodes import limits
from broker.protocols.nats.leafnodes.limits import NATS_LEAF_INFO
from broker.protocols.nats.settings import (
    COMPRESSIONS,
    GLOBAL_ACCOUNT,
    WRITE_TIMEOUTS,
    Address,
    Authorization,
    Compression,
    HttpProxy,
    Leafnodes,
    Remote,
    User,
    Websocket,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.protocols.nats.conf.text import Value

_ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - as the original
_MODES: Final = {  # of compression, by all their names
    **{name: name for name in COMPRESSIONS},
    **dict.fromkeys(words("on enabled true auto"), "s2_auto"),
    **dict.fromkeys(words("disabled false"), "off"),
    **{name.removeprefix("s2_"): name for name in COMPRESSIONS if name.startswith("s2_")},
    "not_supported": "not supported",
}
_PROXY_TLS: Final = frozenset(  # what a proxy's tls block may have
    words(
        "cert_file key_file ca_file insecure cipher_suites allow_insecure_cipher_suites"
        " curve_preferences min_version timeout certs certificates"
    )
)
_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "connection", "upgrade", "nats-no-masking"}
)
_OWN_PREFIX: Final = "sec-websocket-"
_HEADER: Final = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*")
_VERSION: Final = lazy_pattern(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})(?:[-+].*)?")
_VARIABLE: Final = lazy_pattern(r"\$(?:\{(\w+)\}|(\w+))")


def listener(block: Block, default_host: str = _ANY_HOST) -> Address | None:
    """The address from `listen`, or from `host` and `port`; None if absent. Port 0 means any."""
    listen = block.listen("listen")
    host, port = listen or ("", 0)
    named = block.text("host", "net")
    only_port = block.port("port")
    port = port if only_port is None else only_port
    if port == 0:
        return None
    return named or host or default_host, max(port, 0)


# --- websocket


def websocket(block: Block) -> tuple[Websocket | None, dict[str, Value]]:
    """The WebSocket listener, if configured, and the positions of values checked later."""
    positions = {
        key: found
        for key in ("no_auth_user", "jwt_cookie", "authorization", "authentication")
        if (found := block.peek(key)) is not None
    }
    listen = listener(block)
    plain = block.flag("no_tls")
    has_tls = block.has("tls")
    secured = optional_tls(block)
    inner = block.block("authorization", "authentication")
    origins = []
    names = ("allowed_origins", "allowed_origin", "allow_origins", "allow_origin", "origins")
    for text, value in block.each_text(*names, "origin"):
        origins.append(text)
        if not _is_url(text):
            block.mistakes.add(value, f"allowed_origins: {text!r} is not a URL")
    result = Websocket(
        listen=listen or (_ANY_HOST, 0),
        tls=secured,
        advertise=block.text("advertise"),
        same_origin=block.flag("same_origin"),
        allowed_origins=tuple(origins),
        handshake_timeout_ns=block.duration("handshake_timeout", default=0, seconds="yes"),
        compression=block.flag("compression", "compress"),
        authorization=auth.simple(inner) if inner is not None else None,
        jwt_cookie=block.text("jwt_cookie"),
        user_cookie=block.text("user_cookie"),
        pass_cookie=block.text("pass_cookie"),
        token_cookie=block.text("token_cookie"),
        headers=_headers(block),
        ping_interval_ns=block.duration("ping_interval", default=0),
        no_auth_user=block.text("no_auth_user"),
    )
    block.done()
    if listen is None:
        return None, {}
    if not plain and not has_tls:
        block.wrong("websocket: tls is missing; without it no_tls has to be true")
    return result, positions


def _headers(block: Block) -> tuple[tuple[str, str], ...]:
    """Headers for the answer to a request; those of the handshake cannot be set."""
    found = block.pairs(str, "headers")
    for name, text in found:
        key = name.lower()
        if key in _OWN_HEADERS:
            block.wrong(f'websocket: invalid header "{name}" not allowed', "headers")
        elif key.startswith(_OWN_PREFIX):
            reason = f'websocket: invalid header "{name}", "Sec-WebSocket-" prefix not allowed'
            block.wrong(reason, "headers")
        elif not _HEADER.fullmatch(f"{name}: {text}"):
            block.wrong(f'websocket: header "{name}" has characters that no header may', "headers")
    return found


# --- leafnodes


class Leafs:
    """The block `leafnodes`, and the accounts in it with their positions."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.accounts: list[tuple[str, Value]] = []
        self.remotes: list[tuple[str, Value]] = []
        self.joined: set[tuple[tuple[str, ...], str, str]] = set()  # urls, account, credentials
        self.users: Value | None = None
        self.single: tuple[str, Value] | None = None

    def read(self, block: Block) -> Leafnodes:
        default = Leafnodes()
        listen = listener(block)
        who, account, nkey = self.authorization(block)
        version = block.text("min_version", "minimum_version")
        if block.has("min_version", "minimum_version") and (reason := _wrong_version(version)):
            block.wrong(f"min_version: {reason}", "min_version", "minimum_version")
        result = Leafnodes(
            listen=listen,
            authorization=who,
            account=account,
            nkey=nkey,
            tls=optional_tls(block),
            advertise=block.text("advertise", "leafnode_advertise"),
            no_advertise=block.flag("no_advertise"),
            reconnect_ns=block.duration(
                "reconnect", "reconnect_delay", "reconnect_interval", default=default.reconnect_ns
            ),
            min_version=version,
            isolated=block.flag("isolate_leafnode_interest", "isolate"),
            dial_timeout_ns=block.duration("dial_timeout", default=default.dial_timeout_ns),
            write_deadline_ns=block.duration("write_deadline", default=0),
            write_timeout=block.choice(WRITE_TIMEOUTS, "write_timeout"),
            compression=_compression(block),
            remotes=tuple(self.remote(one) for one in block.blocks("remotes", what="a remote")),
        )
        block.done()
        return result

    def authorization(self, block: Block) -> tuple[Authorization | None, str, str]:
        """The users that may join, the account of the single user or nkey, and that nkey."""
        inner = block.block("authorization")
        if inner is None or not isinstance(inner.value.it, dict):
            return None, "", ""
        account_position = inner.peek("account")
        nkey = inner.key(nkeys.USER, "nkey")
        account = inner.text("account")
        if account_position is not None and account:
            self.accounts.append((account, account_position))
            self.single = account, account_position
        result = Authorization(
            user=inner.text("user", "username"),
            password=inner.text("password", "pass"),
            timeout_ns=inner.duration("timeout", default=0, seconds="fraction"),
            users=self.leaf_users(inner),
            proxy_required=inner.flag("proxy_required"),
        )
        inner.done()
        if result.users:
            self.users = inner.peek("users")
            for text, names in (result.user, ("user", "username")), (nkey, ("nkey",)):
                if text:
                    inner.wrong(f"{names[0]}: cannot be combined with an array of users", *names)
        return result, account, nkey

    def leaf_users(self, block: Block) -> tuple[User, ...]:
        found: dict[str, User] = {}
        for one in block.blocks("users", what="a user"):
            account_position = one.peek("account")
            user = User(
                name=one.text("user", "username"),
                password=one.text("password", "pass"),
                account=one.text("account"),
                proxy_required=one.flag("proxy_required"),
            )
            one.done()
            if account_position is not None and user.account:
                self.accounts.append((user.account, account_position))
            if user.name in found:
                one.wrong(f'"{user.name}" is already defined')
            found[user.name] = user
        return tuple(found.values())

    def remote(self, block: Block) -> Remote:
        """A remote: a server that this one joins."""
        before = len(block.mistakes.errors)
        account_position = block.peek("account", "local") or block.value
        account = block.text("account", "local", default=GLOBAL_ACCOUNT) or GLOBAL_ACCOUNT
        self.remotes.append((account, account_position))
        credentials = self.expanded(block, "credentials", "creds")
        nkey = block.text("nkey", "seed")
        if nkey and not _is_user_seed(nkey):
            block.wrong("nkey: not the seed of a user (SU...)", "nkey", "seed")
        if credentials and nkey:
            block.wrong("a remote has credentials or an nkey, not both")
        migrate = block.take("jetstream_cluster_migrate", "js_cluster_migrate")
        if migrate is not None:
            block.mistakes.note(migrate, "jetstream_cluster_migrate: has no effect here")
        result = Remote(
            urls=_urls(block),
            account=account,
            credentials=credentials,
            nkey=nkey,
            tls=optional_tls(block, server=False),
            hub=block.flag("hub"),
            deny_imports=_denied(block, "deny_imports", "deny_import"),
            deny_exports=_denied(block, "deny_exports", "deny_export"),
            randomize=not block.flag("no_randomize", "dont_randomize"),
            ws_compression=block.flag(
                "ws_compression", "ws_compress", "websocket_compression", "websocket_compress"
            ),
            ws_no_masking=block.flag("ws_no_masking", "websocket_no_masking"),
            disabled=block.flag("disabled"),
            dial_timeout_ns=block.duration("dial_timeout", default=0),
            first_info_timeout_ns=block.duration("first_info_timeout", default=NATS_LEAF_INFO),
            ignores_discovered=block.flag("ignore_discovered_servers"),
            isolated=block.flag("isolate_leafnode_interest", "isolate"),
            requests_isolation=block.flag("request_isolation"),
            proxy=_proxy(block),
            compression=_compression(block),
        )
        block.done()
        if result.proxy is not None and result.tls is None:
            for url in result.urls:
                if urlsplit(url).scheme.lower() == "wss":
                    block.wrong("proxy: a wss URL needs a tls block of the remote", "proxy")
        if not result.urls and len(block.mistakes.errors) == before:
            block.wrong("a remote needs a url")
        key = (result.urls, account, credentials)
        if key in self.joined:
            block.wrong(f"another remote has these urls for account {account}")
        self.joined.add(key)
        return result

    def expanded(self, block: Block, *names: str) -> str:
        """A path with ~ and $NAME replaced."""
        text = block.text(*names)
        text = _VARIABLE.sub(lambda m: self.environment.get(m[1] or m[2], ""), text)
        if text.startswith("~"):
            home = self.environment.get("HOME", "")
            if not home:
                block.wrong(f"{names[0]}: ~ needs HOME in the environment", *names)
            return os.path.normpath(home + "/" + text[1:])
        return text


def _proxy(block: Block) -> HttpProxy | None:
    """The HTTP proxy of a remote."""
    inner = block.block("proxy")
    if inner is None or not isinstance(inner.value.it, dict):
        return None
    before = len(inner.mistakes.errors)
    has_tls = inner.has("tls")
    for key in inner.value.it["tls"].it if _is_map(inner, "tls") else ():
        if key.lower() not in _PROXY_TLS:
            inner.wrong(f"{key!r} is not supported for proxy TLS", "tls")
    result = HttpProxy(
        url=inner.text("url"),
        user=inner.text("username"),
        password=inner.text("password"),
        timeout_ns=inner.duration("timeout", default=0),
        tls=optional_tls(inner, server=False),
    )
    inner.done()
    if len(inner.mistakes.errors) > before:
        return None
    if reason := _wrong_proxy(result, has_tls=has_tls):
        inner.wrong(f"proxy: {reason}", "url")
    return result


def _is_map(block: Block, name: str) -> bool:
    entry = block.peek(name)
    return entry is not None and isinstance(entry.it, dict)


def _wrong_proxy(proxy: HttpProxy, *, has_tls: bool) -> str:
    """Why a proxy cannot be used; empty if it can."""
    if not proxy.url:
        return "url is missing"
    if not _is_url(proxy.url):
        return "url: expected one like http://HOST:PORT"
    parts = urlsplit(proxy.url)
    problems = {
        f"URL scheme must be http or https, got: {parts.scheme}": (
            parts.scheme not in ("http", "https")
        ),
        "URL must specify a host": not parts.hostname,
        f"TLS configuration requires an https proxy URL, got: {parts.scheme}": (
            has_tls and parts.scheme != "https"
        ),
        "username and password must both be specified or both be empty": (
            bool(proxy.user) != bool(proxy.password)
        ),
    }
    return next((text for text, wrong in problems.items() if wrong), "")


def _urls(block: Block) -> tuple[str, ...]:
    found: dict[str, Value] = {}
    schemes = set()
    for text, value in block.each_text("url", "urls"):
        url = text.strip()
        if url in found:
            block.mistakes.warn(value, "url: is given twice")
        elif not _is_url(url) or not urlsplit(url).hostname:
            # The URL is not shown, because it may contain a password.
            block.mistakes.add(value, "url: expected one like nats-leaf://HOST:PORT")
        else:
            found[url] = value
            schemes.add(urlsplit(url).scheme.lower() in ("ws", "wss"))
    if len(schemes) > 1:
        reason = "urls: WebSocket URLs and others cannot be combined"
        block.mistakes.add(next(iter(found.values())), reason)
    return tuple(found)


def _is_user_seed(text: str) -> bool:
    """Whether the text is the secret key of a user."""
    try:
        return nkeys.KeyPair.from_seed(text).kind == nkeys.USER
    except ValueError:
        return False


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.port is None or bool(parts.scheme and parts.netloc)
    except ValueError:
        return False


def _denied(block: Block, *names: str) -> tuple[str, ...]:
    rules = auth.subject_rules(block, *names, queues=False)
    return tuple(rule.subject for rule in rules or ())


def _compression(block: Block) -> Compression:
    """The key `compression`: a mode, true or false, or a map with a mode and thresholds."""
    entry = block.take("compression")
    default = Compression()
    if entry is None:
        return default
    mode = entry.it
    thresholds: tuple[int, ...] = ()
    if isinstance(mode, dict):
        inner = Block(entry, block.mistakes, "compression")
        mode = inner.text("mode", default="auto")
        thresholds = _thresholds(inner)
        inner.done()
    if isinstance(mode, bool):
        mode = "on" if mode else "off"
    if not isinstance(mode, str):
        reason = f"compression: expected a mode, true or false, got {kind_of(mode)}"
        block.mistakes.add(entry, reason)
        return default
    found = _MODES.get(mode.lower())
    if found is None:
        block.mistakes.add(entry, f"compression: unknown mode {mode!r}")
        return default
    if found != "s2_auto" or not thresholds:
        thresholds = default.thresholds_ns
    return Compression(found, thresholds)


def _thresholds(block: Block) -> tuple[int, ...]:
    """The round-trip times of the levels, without zeros at the end."""
    names = ("rtt_thresholds", "thresholds", "rtts", "rtt")
    position = block.peek(*names)
    found: list[int] = []
    for text, value in block.each_text(*names, only_array=True):
        try:
            found.append(max(go_duration(text), 0))
        except ValueError as problem:
            block.mistakes.add(value, f"rtt_thresholds: {problem}")
    some = [rtt for rtt in found if rtt]
    most = limits.NATS_LEAF_RTTS_MAX
    if position is not None and (some != sorted(some) or len(found) > most or (found and not some)):
        block.mistakes.add(position, "rtt_thresholds: expected up to four, in ascending order")
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def _wrong_version(text: str) -> str:
    match = _VERSION.fullmatch(text)
    if match is None:
        return f"{text!r} is not a version"
    least = limits.NATS_LEAF_VERSION_MIN
    if tuple(map(int, match.groups())) < least:
        return f"{text} is too old, {'.'.join(map(str, least))} is the least"
    return ""
