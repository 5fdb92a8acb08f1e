"""The command line of nats-server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server import flags
from broker.protocols.nats.settings import Authorization, JetStream, Settings, Tls

# Read from `nats-server -h` and the source of 2.10.22.
ORIGINAL = """a addr net p port n name server_name P pid m http_port ms https_port c config t sl
signal client_advertise ports_file_dir l log T logtime logtime_utc s syslog r remote_syslog D debug
V trace VV DV DVV log_size_limit max_traced_msg_len js jetstream sd store_dir user pass auth tls
tlscert tlskey tlsverify tlscacert routes cluster cluster_name no_advertise cluster_advertise
connect_retries cluster_listen profile h help v version help_tls"""
FILE = Settings(
    listen=("1.1.1.1", 5000),
    http=("1.1.1.1", 8000),
    server_name="file",
    debug=True,
    pid_file="file.pid",
    authorization=Authorization("joe", "secret"),
    tls=Tls("a.pem", "a.key", pinned_certs=frozenset({"x"})),
)


def applied(*args: str, to: Settings = FILE) -> Settings:
    return flags.apply(to, flags.read(args)[0])


def test_every_flag_of_the_original() -> None:
    assert set(flags.FLAGS) == set(ORIGINAL.split())


def test_help_names_every_flag() -> None:
    text = flags.usage()
    assert [name for name in flags.FLAGS if f"-{name}" not in text] == []
    assert max(map(len, text.splitlines())) <= 100


def test_without_flags_the_file_counts() -> None:
    assert applied() == FILE


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["-p", "1"], "listen", ("1.1.1.1", 1)),
        (["-p", "-1"], "listen", ("1.1.1.1", 0)),
        (["--port=0"], "listen", ("1.1.1.1", 4222)),
        (["-p", "1", "--port", "2", "-p", "3"], "listen", ("1.1.1.1", 3)),
        (["-p", "1", "--port", "2"], "listen", ("1.1.1.1", 2)),
        (["-a", "h"], "listen", ("h", 5000)),
        (["--addr", ""], "listen", ("0.0.0.0", 5000)),
        (["-net=h"], "http", ("h", 8000)),
        (["-m", "1"], "http", ("1.1.1.1", 1)),
        (["-m", "-1", "-a", "h"], "http", ("h", 0)),
        (["-m", "0"], "http", None),
        (["-ms", "2"], "https", ("1.1.1.1", 2)),
        (["-n", "x"], "server_name", "x"),
        (["--server_name", "x"], "server_name", "x"),
        (["-P", "x"], "pid_file", "x"),
        (["--pid", ""], "pid_file", ""),
        (["--ports_file_dir", "x"], "ports_file_dir", "x"),
        (["--client_advertise", "x"], "client_advertise", "x"),
        (["-l", "x"], "logfile", "x"),
        (["--log_size_limit", "0x10"], "logfile_size_limit", 16),
        (["-T=false"], "logtime", False),
        (["-logtime_utc"], "logtime_utc", True),
        (["-s"], "syslog", True),
        (["-r", "udp://h:1"], "remote_syslog", "udp://h:1"),
        (["-D=false"], "debug", False),
        (["-V"], "trace", True),
        (["-max_traced_msg_len", "7"], "max_traced_msg_len", 7),
        (["--cluster_name", "x"], "cluster_name", "x"),
        (["--user", "u", "--pass", "p"], "authorization", Authorization("u", "p")),
        (["--auth", "t"], "authorization", Authorization("joe", "secret", "t")),
        (["-tls=false"], "tls", None),
        (["-tls=false", "-tlscert", "x"], "tls", None),
    ],
)
def test_flags_override_the_file(args: list[str], field: str, value: Any) -> None:
    assert getattr(applied(*args), field) == value


def test_other_hosts_of_the_pages_stay() -> None:
    other = Settings(listen=("1.1.1.1", 1), http=("localhost", 8000))
    assert applied("-a", "h", to=other).http == ("localhost", 8000)
    assert applied("-m", "1", to=other).http == ("localhost", 1)


@pytest.mark.parametrize(
    ("args", "modes"),
    [
        (["-DV"], (True, True, False)),
        (["-DVV"], (True, True, True)),
        (["-VV"], (False, True, True)),
        (["-D", "-V=false", "-VV"], (True, True, True)),
        (["-DV=false", "-D"], (False, False, False)),
    ],
)
def test_debug_and_trace(args: list[str], modes: tuple[bool, bool, bool]) -> None:
    found = applied(*args, to=Settings())
    assert (found.debug, found.trace, found.trace_verbose) == modes


def test_tls_flags_put_another_certificate_in_its_place() -> None:
    found = applied("--tlsverify", "--tlscert", "b.pem", "--tlskey", "b.key", "--tlscacert", "ca")
    assert found.tls == Tls("b.pem", "b.key", ca_file="ca", verify=True,
                            pinned_certs=frozenset({"x"}))  # fmt: skip


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--tls"], "TLS Server certificate must be present and valid"),
        (["--tlsverify"], "TLS Server certificate must be present and valid"),
        (["--tls", "--tlscert", "x"], "TLS Server private key must be present and valid"),
    ],
)
def test_tls_without_files(args: list[str], text: str) -> None:
    with pytest.raises(FlagError, match=text):
        applied(*args)


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["--routes", "nats://h:1"], "--routes"),
        (["--cluster", "nats://h:1"], "--cluster"),
        (["--cluster_listen", "nats://h:1"], "--cluster"),
    ],
)
def test_what_is_not_here_is_refused_by_name(args: list[str], name: str) -> None:
    with pytest.raises(FlagError, match=f"{name} is not supported"):
        flags.check(flags.read(args)[0])


@pytest.mark.parametrize(
    ("args", "block"),
    [
        ([], None),
        (["-js"], JetStream()),
        (["--jetstream", "--store_dir", "x"], JetStream(store_dir="x")),
        (["-sd", "x"], JetStream(enabled=False, store_dir="x")),
        (["-js=false"], JetStream(enabled=False)),
    ],
)
def test_jetstream(args: list[str], block: JetStream | None) -> None:
    assert applied(*args).jetstream == block


def test_flags_of_jetstream_override_the_file() -> None:
    found = replace(FILE, jetstream=JetStream(domain="hub", store_dir="a"))
    given, _ = flags.read(["-js=false", "-sd", "b"])
    expected = JetStream(enabled=False, domain="hub", store_dir="b")
    assert flags.apply(found, given).jetstream == expected


def test_empty_values_ask_for_nothing() -> None:
    args = ["-js=false", "--routes", "", "--cluster", "", "-profile", "0", "-no_advertise=false"]
    given, _ = flags.read(args)
    flags.check(given)
    assert list(flags.remarks(given)) == []


def test_flags_without_effect_are_reported() -> None:
    args = ["--profile", "1", "--connect_retries", "2", "--no_advertise"]
    given, _ = flags.read([*args, "--cluster_advertise", "x"])
    flags.check(given)
    assert [line.split()[0] for line in flags.remarks(given)] == [
        "--cluster_advertise",
        "--no_advertise",
        "--connect_retries",
        "--profile",
    ]
    assert flags.apply(FILE, given) == FILE


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["-bogus"], "flag provided but not defined: -bogus"),
        (["-p"], "flag needs an argument: -p"),
        (["-p", "abc"], 'invalid value "abc" for flag -p: parse error'),
        (["-D=maybe"], 'invalid boolean value "maybe" for -D: parse error'),
        (["---D"], "bad flag syntax: ---D"),
    ],
)
def test_wrong_flags(args: list[str], text: str) -> None:
    with pytest.raises(FlagError) as caught:
        flags.read(args)
    assert str(caught.value) == text


def test_words_end_the_flags() -> None:
    assert flags.read(["-D", "help", "-V"]) == ({"debug": True}, ["help", "-V"])
