"""Flags by Go's rules: what is taken, what is refused, and what a configuration file may say."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base import units
from broker.base.settings import Address
from broker.base.units import SECOND
from broker.cli.dropin import goflags
from broker.cli.dropin.nsqd import flags
from broker.cli.dropin.nsqd.config import StartError, listen, to_config, without_target
from broker.engine.config import SyncPolicy
from broker.protocols.nsq import limits

NSQD = flags.nsqd("box")
S, MS = SECOND, units.MS


@pytest.mark.parametrize(
    ("args", "given", "rest"),
    [
        (["-tcp-address", "a:1"], {"tcp-address": "a:1"}, []),
        (["--tcp-address=a:1"], {"tcp-address": "a:1"}, []),
        (["-tcp-address="], {"tcp-address": ""}, []),
        (["--tcp-address", "-x"], {"tcp-address": "-x"}, []),
        (["-deflate=false", "-snappy"], {"deflate": False, "snappy": True}, []),
        (["-deflate", "false", "-snappy"], {"deflate": True}, ["false", "-snappy"]),
        (["--", "-snappy"], {}, ["-snappy"]),
        (["-", "-snappy"], {}, ["-", "-snappy"]),
        (["-node-id=0x10"], {"node-id": 16}, []),
        (["-node-id=017"], {"node-id": 15}, []),
        (["-node-id=1_0"], {"node-id": 10}, []),
        (["-msg-timeout=1m30s"], {"msg-timeout": 90 * S}, []),
        (["-msg-timeout=1.5h"], {"msg-timeout": 5400 * S}, []),
        (["-msg-timeout=.5s"], {"msg-timeout": 500 * MS}, []),
        (["-msg-timeout=-2ms"], {"msg-timeout": -2 * MS}, []),
        (["-msg-timeout=0"], {"msg-timeout": 0}, []),
        (["-lookupd-tcp-address=a:1", "-lookupd-tcp-address=b:2"],
         {"lookupd-tcp-address": ["a:1", "b:2"]}, []),
        (["-e2e-processing-latency-percentile=1.0,0.5"],
         {"e2e-processing-latency-percentile": [1.0, 0.5]}, []),
        (["-tls-required=tcp-https"], {"tls-required": "tcp-https"}, []),
        (["-tls-required"], {"tls-required": "true"}, []),
        (["-log-level=WARN"], {"log-level": "warn"}, []),
    ],
)  # fmt: skip
def test_taken(args: list[str], given: dict[str, Any], rest: list[str]) -> None:
    found = goflags.parse(NSQD, args)
    assert (found.given, found.rest) == (given, rest)


REFUSED = [
    (["-zz"], "flag provided but not defined: -zz"),
    (["--zz=1"], "flag provided but not defined: -zz"),
    (["---x"], "bad flag syntax: ---x"),
    (["-=x"], "bad flag syntax: -=x"),
    (["-tcp-address"], "flag needs an argument: -tcp-address"),
    (["-node-id=xx"], 'invalid value "xx" for flag -node-id: parse error'),
    (
        ["-node-id=99999999999999999999"],
        'invalid value "99999999999999999999" for flag -node-id: value out of range',
    ),
    (["-msg-timeout=5"], 'invalid value "5" for flag -msg-timeout: parse error'),
    (["-msg-timeout=."], 'invalid value "." for flag -msg-timeout: parse error'),
    (["-msg-timeout="], 'invalid value "" for flag -msg-timeout: parse error'),
    (["-deflate=maybe"], 'invalid boolean value "maybe" for -deflate: parse error'),
    (
        ["-log-level=loud"],
        (
            "invalid value \"loud\" for flag -log-level: invalid log level 'loud' "
            "(debug, info, warn, error, fatal)"
        ),
    ),
    (
        ["-tls-required=maybe"],
        (
            'invalid boolean value "maybe" for -tls-required: '
            'strconv.ParseBool: parsing "maybe": invalid syntax'
        ),
    ),
    (
        ["-tls-min-version=9"],
        'invalid value "9" for flag -tls-min-version: unknown tlsVersionOption "9"',
    ),
]


@pytest.mark.parametrize(("args", "reason"), REFUSED)
def test_refused(args: list[str], reason: str) -> None:
    with pytest.raises(goflags.FlagError) as caught:
        goflags.parse(NSQD, args)
    assert str(caught.value) == reason


@pytest.mark.parametrize("word", ["-h", "--h", "-help", "--help"])
def test_help(word: str) -> None:
    with pytest.raises(goflags.HelpWanted):
        goflags.parse(NSQD, ["-snappy", word])


@pytest.mark.parametrize(
    ("key", "raw", "name", "value"),
    [
        ("id", 7, "node-id", 7),
        ("id", "7", "node-id", 7),
        ("node_id", 7, "node-id", NSQD["node-id"].default),
        ("msg_timeout", "1m30s", "msg-timeout", 90 * S),
        ("msg_timeout", 1500, "msg-timeout", 1500 * MS),
        ("deflate", False, "deflate", False),
        ("deflate", 0, "deflate", True),
        ("deflate", 1, "deflate", False),
        ("deflate", "f", "deflate", False),
        ("nsqlookupd_tcp_addresses", ["a:1"], "lookupd-tcp-address", ["a:1"]),
        ("nsqlookupd_tcp_addresses", "a:1,b:2", "lookupd-tcp-address", ["a:1", "b:2"]),
        ("lookupd_tcp_address", ["a:1"], "lookupd-tcp-address", ()),
        ("e2e_processing_latency_percentiles", [1.0, 0.5],
         "e2e-processing-latency-percentile", [1.0, 0.5]),
        ("log_level", "DEBUG", "log-level", "debug"),
        ("tls_required", True, "tls-required", "true"),
        ("tls_min_version", "", "tls-min-version", "tls1.0"),
        ("nobody_knows", 1, "deflate", True),
        ("verbose", True, "verbose", False),
    ],
)  # fmt: skip
def test_keys_of_a_file(key: str, raw: object, name: str, value: object) -> None:
    assert goflags.resolve(NSQD, {}, {key: raw})[name] == value


def test_a_flag_wins_over_the_file() -> None:
    values = goflags.resolve(NSQD, {"node-id": 3}, {"id": 7})
    assert values["node-id"] == 3


@pytest.mark.parametrize(
    ("key", "raw"), [("id", "x"), ("id", True), ("msg_timeout", "5"), ("deflate", "x"),
                     ("nsqlookupd_tcp_addresses", [1]), ("nsqlookupd_tcp_addresses", 1)]
)  # fmt: skip
def test_values_of_a_file_that_make_no_sense(key: str, raw: object) -> None:
    with pytest.raises(goflags.FlagError, match="option resolution failed to coerce"):
        goflags.resolve(NSQD, {}, {key: raw})


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0, "0s"), (MS, "1ms"), (250 * MS, "250ms"), (2 * S, "2s"), (1500 * MS, "1.5s"),
     (60 * S, "1m0s"), (3600 * S, "1h0m0s"), (1500, "1.5\u00b5s"), (5, "5ns"), (-S, "-1s")],
)  # fmt: skip
def test_durations_as_go_writes_them(duration: int, text: str) -> None:
    assert goflags.duration_text(duration) == text
    assert goflags.parse_duration(text) == duration


def config_of(*args: str) -> Any:
    values = goflags.resolve(NSQD, goflags.parse(NSQD, args).given, {})
    return to_config(NSQD, values)


def test_the_configuration_of_flags() -> None:
    plain = config_of()
    assert plain.nats.listen is plain.monitor.listen is None
    assert plain.nsq.listen == Address("0.0.0.0", 4150)
    assert plain.nsq.http == Address("0.0.0.0", 4151)
    assert plain.nsq.broadcast_address == "box"
    assert plain.nsq.node_id == flags.default_node_id("box")
    assert plain.server.data == "."
    assert plain.storage.sync == SyncPolicy("period", 2 * S)
    assert plain.storage.segment_size == limits.NSQD_BYTES_PER_FILE
    assert config_of("-sync-every=1").storage.sync == SyncPolicy("always")
    assert config_of("-http-address=").nsq.http is None
    assert config_of("-http-address=/x/y").nsq.http == Address("/x/y", -1)
    assert plain.nsq.https is None
    assert config_of("-tls-cert=c", "-tls-key=k").nsq.https == Address("0.0.0.0", 4152)
    assert config_of("-msg-timeout=3s").nsq.msg_timeout_ns == 3 * S
    assert config_of("-max-msg-size=77").nsq.max_msg_size == 77
    assert config_of("-data-path=/x").server.data == "/x"
    assert plain.nsq.ephemeral_channel_max == limits.NSQD_MEM_QUEUE_SIZE
    assert config_of("-mem-queue-size=77").nsq.ephemeral_channel_max == 77
    assert config_of("-mem-queue-size=0").nsq.ephemeral_channel_max == 1
    big = config_of("-max-body-size=33554432").storage
    assert big.append_buffer_max == 33554432


def test_what_the_engine_cannot_do_is_refused() -> None:
    with pytest.raises(StartError, match="--max-rdy-count must be between"):
        config_of("-max-rdy-count=-1")
    with pytest.raises(StartError, match=r"--msg-timeout must be between 1ms and .*, got -1s$"):
        config_of("-msg-timeout=-1s")
    with pytest.raises(StartError, match=r"--msg-timeout must .*, got -1us$"):
        config_of("-msg-timeout=-5ns")
    with pytest.raises(StartError, match="listen"):
        listen("host:port")


# Flags of parts that are on their way; a flag that reaches nothing else must be in NO_EFFECT.
AWAITED = frozenset(
    {"auth-http-address", "auth-http-request-method", "broadcast-http-port", "broadcast-tcp-port"}
    | {"deflate", "snappy", "enable-experiment", "https-address", "lookupd-tcp-address"}
    | {"http-client-connect-timeout", "http-client-request-timeout", "topology-region"}
    | {"topology-zone", "e2e-processing-latency-percentile", "e2e-processing-latency-window-time"}
    | {name for name in NSQD if name.startswith(("statsd-", "tls-"))}
)


def test_every_flag_reaches_something() -> None:
    assert set(without_target(NSQD)) <= AWAITED
    lookupd = flags.nsqlookupd("box")
    assert set(without_target(lookupd)) <= set(lookupd) - flags.BY_NAME


def test_flags_without_a_target_are_refused_unless_left_alone() -> None:
    for name in without_target(NSQD):
        flag = NSQD[name]
        wanted = {"https-address": "", "tls-required": "true"}.get(name, "changed")
        with pytest.raises(StartError, match=f"--{name} is not supported"):
            to_config(NSQD, {**goflags.resolve(NSQD, {}, {}), name: wanted})
        assert flag.target, name
