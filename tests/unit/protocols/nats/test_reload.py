"""What a reload may change, in nats-server's words."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from broker.base import units
from broker.base.units import MS
from broker.protocols.nats import reload
from broker.protocols.nats.reload import Action, ReloadRefused, advertise_problem, plan
from broker.protocols.nats.settings import (
    Account,
    Authorization,
    Callout,
    Destination,
    HttpProxy,
    JetStream,
    Leafnodes,
    Mapping,
    Permissions,
    Remote,
    Resolver,
    Settings,
    Tls,
    User,
    Websocket,
)

USER = User("joe", "secret")
TLS = Tls("cert.pem", "key.pem")
SECOND = units.SECOND


def refusal(old: Settings, new: Settings) -> str:
    with pytest.raises(ReloadRefused) as caught:
        plan(old, new)
    return str(caught.value)


def test_nothing_changed() -> None:
    assert plan(Settings(), Settings()) == reload.Plan()


# Texts and order were recorded from nats-server 2.10.22.
@pytest.mark.parametrize(
    ("changes", "lines", "actions"),
    [
        ({"trace": True}, ["Reloaded: trace = true"], [Action.LOGGING, Action.TRACE]),
        ({"debug": True}, ["Reloaded: debug = true"], [Action.LOGGING]),
        (
            {"trace": True, "trace_verbose": True, "logtime_utc": True},
            [
                "Reloaded: trace = true",
                "Reloaded: trace_verbose = true",
                "Reloaded: logtime_utc = true",
            ],
            [Action.LOGGING, Action.TRACE],
        ),
        ({"logtime": False}, ["Reloaded: logtime = false"], [Action.LOGGING]),
        ({"logfile": "x"}, ["Reloaded: log_file = x"], [Action.LOGGING]),
        ({"syslog": True}, ["Reloaded: syslog = true"], [Action.LOGGING]),
        ({"remote_syslog": "udp://h:1"}, ["Reloaded: remote_syslog = udp://h:1"], [Action.LOGGING]),
        ({"max_connections": 5}, ["Reloaded: max_connections = 5"], [Action.CONNECTIONS]),
        (
            {"max_payload": 100, "ping_interval_ns": 10 * SECOND, "ping_max": 5},
            [
                "Reloaded: ping_interval = 10s",
                "Reloaded: ping_max = 5",
                "Reloaded: max_payload = 100",
            ],
            [Action.INFO, Action.LIMITS],
        ),
        ({"max_control_line": 2000}, ["Reloaded: max_control_line = 2000"], [Action.LIMITS]),
        ({"write_deadline_ns": SECOND}, ["Reloaded: write_deadline = 1s"], [Action.LIMITS]),
        ({"max_traced_msg_len": 5}, ["Reloaded: max_traced_msg_len = 5"], [Action.TRACE]),
        ({"client_advertise": "a:1"}, ["Reload: client_advertise = a:1"], [Action.INFO]),
        ({"server_tags": ("x",)}, ["Reloaded: tags"], [Action.TAGS]),
        ({"pid_file": "./p"}, ["Reloaded: pid_file = ./p"], [Action.PID_FILE]),
        ({"ports_file_dir": "."}, ["Reloaded: ports_file_dir = ."], [Action.PORTS_FILE]),
        (
            {"authorization": Authorization("a", "b", timeout_ns=5 * SECOND)},
            [
                "Reloaded: authorization username",
                "Reloaded: authorization password",
                "Reloaded: authorization timeout = 5",
            ],
            [Action.INFO, Action.LIMITS, Action.AUTHORIZATION],
        ),
        (
            {"authorization": Authorization(timeout_ns=3 * SECOND // 2)},
            ["Reloaded: authorization timeout = 1.5"],
            [Action.LIMITS],
        ),
        (
            {"authorization": Authorization(token="t")},
            ["Reloaded: authorization token"],
            [Action.INFO, Action.AUTHORIZATION],
        ),
        (
            {"authorization": Authorization(users=(USER,))},
            ["Reloaded: authorization users"],
            [Action.INFO, Action.AUTHORIZATION],
        ),
        (
            {"authorization": Authorization(users=(User(nkey="U"),))},
            ["Reloaded: authorization nkey users"],
            [Action.INFO, Action.AUTHORIZATION],
        ),
        (
            {"accounts": (Account("A", users=(USER,)),)},
            ["Reloaded: accounts"],
            [Action.ACCOUNTS, Action.AUTHORIZATION],
        ),
        (
            {"mappings": (Mapping("a", (Destination("b"),)),)},
            ["Reloaded: mappings"],
            [Action.MAPPINGS],
        ),
        ({"tls": TLS}, ["Reloaded: tls = enabled"], [Action.TLS, Action.INFO]),
        ({"cluster_name": "x"}, ["Cluster name updated to x"], [Action.INFO]),
        (
            {"connect_error_reports": 3, "reconnect_error_reports": 4},
            ["Reloaded: connect_error_reports = 3", "Reloaded: reconnect_error_reports = 4"],
            [Action.LIMITS],
        ),
    ],
)
def test_what_can_change(changes: dict[str, Any], lines: list[str], actions: list[Action]) -> None:
    found = plan(Settings(), dataclasses.replace(Settings(), **changes))
    assert list(found.lines) == lines
    assert list(found.actions) == actions


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"server_name": "x"}, "ServerName: old=, new=x"),
        ({"listen": ("0.0.0.0", 4222)}, "Host: old=127.0.0.1, new=0.0.0.0"),
        ({"listen": ("127.0.0.1", 4999)}, "Port: old=4222, new=4999"),
        ({"max_subscriptions": 5}, "MaxSubs: old=0, new=5"),
        ({"max_pending": 5000000}, "MaxPending: old=67108864, new=5000000"),
        ({"lame_duck_duration_ns": 40 * SECOND}, "LameDuckDuration: old=2m0s, new=40s"),
        ({"lame_duck_grace_period_ns": 3 * SECOND}, "LameDuckGracePeriod: old=10s, new=3s"),
        ({"http": ("0.0.0.0", 8111)}, "HTTPPort: old=0, new=8111"),
        ({"https": ("0.0.0.0", 8111)}, "HTTPSPort: old=0, new=8111"),
        ({"http_base_path": "/x"}, "HTTPBasePath: old=, new=/x"),
        ({"max_sub_tokens": 4}, "MaxSubTokens: old=0, new=4"),
        ({"no_header_support": True}, "NoHeaderSupport: old=false, new=true"),
        ({"disable_sublist_cache": True}, "NoSublistCache: old=false, new=true"),
        ({"allow_non_tls": True}, "AllowNonTLS: old=false, new=true"),
        ({"no_auth_user": "x"}, "NoAuthUser: old=, new=x"),
        ({"system_account": "X"}, "SystemAccount: old=, new=X"),
        ({"no_system_account": True}, "NoSystemAccount: old=false, new=true"),
        ({"logfile_size_limit": 100}, "LogSizeLimit: old=0, new=100"),
        ({"logfile_max_num": 3}, "LogMaxFiles: old=0, new=3"),
        ({"websocket": Websocket(("", 1))}, "Websocket: old=none, new=a block"),
        ({"leafnodes": Leafnodes(("", 1))}, "LeafNode: changed listen"),
        ({"jetstream": JetStream()}, "JetStream: old=none, new=a block"),
    ],
)
def test_what_cannot_change(changes: dict[str, Any], text: str) -> None:
    new = dataclasses.replace(Settings(), **changes)
    assert refusal(Settings(), new) == f"config reload not supported for {text}"


def test_the_folder_of_streams_cannot_change() -> None:
    old, new = (Settings(jetstream=JetStream(store_dir=folder)) for folder in "ab")
    expected = "config reload not supported for jetstream storage directory"
    assert refusal(old, new) == expected


def test_one_refused_setting_refuses_all() -> None:
    new = dataclasses.replace(Settings(), debug=True, server_name="x")
    assert "ServerName" in refusal(Settings(), new)


def test_every_setting_is_thought_of() -> None:
    """A field that plan() does not look at would be dropped without a word."""
    changed: dict[str, Any] = {
        "authorization": Authorization("a"),
        "accounts": (Account("A"),),
        "mappings": (Mapping("a", ()),),
        "resolver": Resolver(),
        "tls": TLS,
        "websocket": Websocket(("", 1)),
        "leafnodes": Leafnodes(("", 1)),
        "jetstream": JetStream(),
        "server_tags": ("x",),
        "server_metadata": (("a", "b"),),
        "feature_flags": (("a", True),),
        "trusted_proxies": ("N",),
        "listen": ("a", 1),
        "http": ("a", 1),
        "https": ("a", 1),
    }
    for field in dataclasses.fields(Settings):
        if field.name in {"config_file", "digest"}:  # where they are read from
            continue
        value = getattr(Settings(), field.name)
        if field.name not in changed:
            kinds = {bool: not value, int: 77, str: "other"}
            changed[field.name] = kinds[type(value)]
        new = dataclasses.replace(Settings(), **{field.name: changed[field.name]})
        with contextlib.suppress(ReloadRefused):
            assert plan(Settings(), new).actions, field.name


def test_any_port_stays_the_one_it_is() -> None:
    old = Settings(listen=("h", 4333), http=("h", 8333))
    assert plan(old, Settings(listen=("h", 0), http=("h", 0))) == reload.Plan()


def test_the_default_system_account_by_its_name() -> None:
    assert plan(Settings(), Settings(system_account="$SYS")) == reload.Plan()


def test_no_auth_user_may_go_with_its_user() -> None:
    old = Settings(no_auth_user="joe", authorization=Authorization(users=(USER,)))
    assert Action.INFO in plan(old, Settings()).actions
    new = dataclasses.replace(old, no_auth_user="")
    assert refusal(old, new) == "config reload not supported for NoAuthUser: old=joe, new="


def test_rights_of_a_user() -> None:
    old = Settings(authorization=Authorization(users=(USER,)))
    limited = dataclasses.replace(USER, permissions=Permissions())
    new = Settings(authorization=Authorization(users=(limited,)))
    assert plan(old, new).actions == (Action.AUTHORIZATION,)


def test_refusals_show_no_secrets() -> None:
    old = Settings(leafnodes=Leafnodes(("", 1), authorization=Authorization("a", "hush")))
    new = Settings(leafnodes=Leafnodes(("", 1), authorization=Authorization("a", "silence")))
    text = refusal(old, new)
    assert text == "config reload not supported for LeafNode: changed authorization"
    text = refusal(Settings(), Settings(monitor_user="a", monitor_password="hush"))
    assert text == "config reload not supported for monitor_user: changed its value"


# --- TLS


def test_certificates_are_read_again_though_their_names_are_the_same() -> None:
    found = plan(Settings(tls=TLS), Settings(tls=TLS))
    assert found.actions == (Action.TLS,)
    assert found.lines == ("Reloaded: tls = enabled",)


def test_tls_off() -> None:
    found = plan(Settings(tls=TLS), Settings())
    assert found.lines == ("Reloaded: tls = disabled",)
    assert Action.INFO in found.actions


def test_parts_of_tls() -> None:
    new = dataclasses.replace(
        TLS,
        timeout_ns=5 * SECOND // 2,
        pinned_certs=frozenset({"a"}),
        handshake_first=True,
        handshake_first_wait_ns=50 * MS,
    )
    found = plan(Settings(tls=TLS), Settings(tls=new))
    assert list(found.lines) == [
        "Reloaded: tls timeout = 2.5",
        "Reloaded: tls = enabled",
        "Reloaded: 1 pinned_certs",
        "Reloaded: Client TLS handshake first: true",
        "Reloaded: Client TLS handshake first fallback delay: 50ms",
    ]
    assert Action.PINNED in found.actions


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("verify_and_map", True, "TLSMap: old=false, new=true"),
        ("connection_rate_limit", 3, "TLSRateLimit: old=0, new=3"),
    ],
)
def test_parts_of_tls_that_stay(name: str, value: object, text: str) -> None:
    changes: dict[str, Any] = {name: value}
    new = Settings(tls=dataclasses.replace(TLS, **changes))
    assert refusal(Settings(tls=TLS), new) == f"config reload not supported for {text}"


# --- other listeners


def test_certificates_of_other_listeners() -> None:
    old = Settings(websocket=Websocket(("", 1), tls=TLS), leafnodes=Leafnodes(("", 2), tls=TLS))
    other = dataclasses.replace(TLS, cert_file="new.pem", handshake_first=True)
    assert old.websocket is not None
    assert old.leafnodes is not None
    new = Settings(
        websocket=Websocket(("", 0), tls=dataclasses.replace(TLS, cert_file="new.pem")),
        leafnodes=Leafnodes(("", 0), tls=other),
    )
    found = plan(old, new)
    assert found.actions == (Action.WEBSOCKET_TLS, Action.LEAF_TLS)
    assert found.lines == ("Reloaded: LeafNode TLS HandshakeFirst value is: true",)


def test_remotes() -> None:
    one, two = Remote(("nats://a:1",)), Remote(("nats://b:1",))
    old = Settings(leafnodes=Leafnodes(remotes=(one, two)))
    assert plan(old, Settings(leafnodes=Leafnodes(remotes=(two, one)))) == reload.Plan()
    denied = dataclasses.replace(one, deny_imports=("x",))
    assert plan(old, Settings(leafnodes=Leafnodes(remotes=(denied, two)))) == reload.Plan()
    hub = dataclasses.replace(one, hub=True)
    text = refusal(old, Settings(leafnodes=Leafnodes(remotes=(hub, two))))
    assert text == "config reload not supported for LeafNode: changed hub"
    proxy = HttpProxy("https://p", tls=TLS)
    by = dataclasses.replace(one, proxy=proxy)
    text = refusal(old, Settings(leafnodes=Leafnodes(remotes=(by, two))))
    assert text == "config reload not supported for LeafNode: changed proxy"
    other_tls = dataclasses.replace(by, proxy=dataclasses.replace(proxy, tls=None))
    same = plan(*(Settings(leafnodes=Leafnodes(remotes=(r,))) for r in (by, other_tls)))
    assert same == reload.Plan()


def test_remotes_that_come_and_go() -> None:
    one = Remote(("nats://a:1", "nats://me:secret@b:1"))
    by_file, by_seed = Remote(("nats://a:1",), credentials="c"), Remote(("nats://a:1",), nkey="SU")
    old = Settings(leafnodes=Leafnodes(remotes=(one,)))
    found = plan(old, Settings(leafnodes=Leafnodes(remotes=(by_file, by_seed))))
    assert found.actions == (Action.LEAF_REMOTES,)
    head = "Reloaded: LeafNode Remote urls="
    assert found.lines == (
        f'{head}["nats://a:1" "nats://me:xxxxx@b:1"], account="$G" removed',
        f'{head}["nats://a:1"], account="$G", credentials="c" added',
        f'{head}["nats://a:1"], account="$G", nkey="[REDACTED]" added',
    )
    assert plan(old, Settings()).actions == (Action.LEAF_REMOTES,)
    assert plan(Settings(), old).actions == (Action.LEAF_REMOTES,)


def test_parts_of_the_websocket_listener() -> None:
    old = Settings(websocket=Websocket(("", 1)))
    new = Settings(websocket=Websocket(("", 1), compression=True))
    text = refusal(old, new)
    assert text == "config reload not supported for Websocket: changed compression"


# --- who decides


def test_resolvers() -> None:
    old = Settings(resolver=Resolver(("op",)))
    assert refusal(Settings(), old) == (
        "config reload does not support moving to or from an account resolver"
    )
    new = Settings(resolver=Resolver(("op",), preload=(("A", "jwt"),)))
    assert plan(old, new).actions == (Action.ACCOUNTS, Action.AUTHORIZATION)
    assert "TrustedOperators" in refusal(old, Settings(resolver=Resolver(("other",))))


def test_callout() -> None:
    new = Settings(authorization=Authorization(callout=Callout("A")))
    assert "AuthCallout" in refusal(Settings(), new)


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("", ""),
        ("host", ""),
        ("host:4222", ""),
        ("[::1]:4222", ""),
        ("[::1]", ""),
        ("host:-1", ""),
        ("a:b", 'strconv.Atoi: parsing "b": invalid syntax'),
        ("a:", 'strconv.Atoi: parsing "": invalid syntax'),
        ("a:b:1", "address a:b:1: too many colons in address"),
    ],
)
def test_advertised_addresses(where: str, problem: str) -> None:
    assert advertise_problem(where) == problem


def test_a_wrong_advertised_address_refuses() -> None:
    assert refusal(Settings(), Settings(client_advertise="a:b")) == (
        'invalid ClientAdvertise value of a:b, err=strconv.Atoi: parsing "b": invalid syntax'
    )
