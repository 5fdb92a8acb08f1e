"""The configuration: sources and their order, what is refused and where, the commented file."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configuration import mistakes

from broker.base.settings import (
    Address,
    duration_text,
    key_lines,
    parse_address,
    parse_duration,
    settings,
)
from broker.base.units import DURATION_MAX, HOUR, MIB, MS, US
from broker.config.config import Config
from broker.config.load import FLAGS, SECTIONS, load
from broker.engine.config import SyncPolicy, TopicConfig
from broker.protocols.nats import limits

ROOT = Path(__file__).resolve().parents[3]
COMMENTED = ROOT / "conf" / "twinwire.toml"


def test_no_source_gives_defaults() -> None:
    assert load() == Config()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[server]\ndata = ""\n', ":2: server.data: must not be empty"),
        (
            '[nsq]\ne2e_processing_latency_percentiles = ["zzz q"]\n',
            ":2: nsq.e2e_processing_latency_percentiles: must be numbers such as 0.99, got 'zzz q'",
        ),
        (
            '[nsq]\ntls_client_auth_policy = "q"\n',
            ':2: nsq.tls_client_auth_policy: must be one of "", require, require-verify, got '
            + repr("q"),
        ),
        (
            "[jetstream]\nmax_storage = -1\n",
            ":2: jetstream.max_storage: must be at least 0, got -1",
        ),
        ("a = " + "[" * 5000, ": values are nested too deeply"),
    ],
)
def test_reasons(write, text: str, reason: str) -> None:
    file = write(text)
    assert mistakes(file) == [f"{file}{reason}"]


def test_commented_file_is_the_defaults() -> None:
    assert load(COMMENTED) == Config()


def test_commented_file_has_every_key() -> None:
    document = tomllib.loads(COMMENTED.read_text())
    assert list(document) == list(SECTIONS)
    for name, section in SECTIONS.items():
        assert list(document[name]) == list(settings(section)), name


def commented(text: str, name: str) -> str:
    """The lines of a table that stands there as an example."""
    begin = text.index(f"# [[{name}]]")
    return re.sub(r"(?m)^# ", "", text[begin : text.index("\n\n", begin)]) + "\n"


def test_commented_topic_is_complete_and_default(write) -> None:
    example = commented(COMMENTED.read_text(), "storage.topic")
    table = tomllib.loads(example)["storage"]["topic"][0]
    assert list(table) == list(settings(TopicConfig))
    entry = load(write(example)).storage.topic[0]
    assert entry == TopicConfig(pattern="orders.>", sync=SyncPolicy("always"))


def test_flags_beat_environment_beats_file_beats_default(write) -> None:
    file = write('[nats]\nmax_payload = "2MiB"\nping_max = 3\nlisten = "127.0.0.1:1"\n')
    environment = {"TWINWIRE_NATS_PING_MAX": "4", "TWINWIRE_NATS_LISTEN": "127.0.0.1:2"}
    config = load(file, environment, {"--nats": "127.0.0.1:3"})
    assert config.nats.max_payload == 2 * MIB
    assert config.nats.ping_max == 4
    assert config.nats.listen == Address("127.0.0.1", 3)
    assert config.nats.max_pending == limits.NATS_MAX_PENDING


def as_text(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def test_every_key_can_be_set_by_the_environment() -> None:
    document = tomllib.loads(COMMENTED.read_text())
    environment = {
        f"TWINWIRE_{section}_{key}".upper(): ",".join(value)
        if isinstance(value, list)
        else str(value)
        for section, table in document.items()
        for key, value in table.items()
    }
    assert load(None, environment) == Config()


def test_flags_name_existing_keys() -> None:
    for section, key in FLAGS.values():
        assert key in settings(SECTIONS[section])


def test_environment_of_others_is_left_alone() -> None:
    assert load(None, {"TWINWIRE_BUILD": "debug", "NATS_LISTEN": "x"}) == Config()


def test_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().nats.ping_max = 1  # type: ignore[misc]


def test_all_mistakes_are_reported_with_their_lines(write) -> None:
    file = write(
        '[server]\nnam = "x"\n\n[nats]\nlisten = "nowhere"\nmax_payload = "12 bananas"\n'
        "ping_interval = 10\n[extra]\n[[storage.topic]]\npattern = 'a..b'\n"
        '[[storage.topic]]\nsync = "sometimes"\nfoo = [1,\n  2]\nmax_age = "-1s"\n'
    )
    found = mistakes(file)
    assert [line.removeprefix(f"{file}:").split(": ")[:2] for line in found] == [
        ["2", "server.nam"],
        ["5", "nats.listen"],
        ["6", "nats.max_payload"],
        ["7", "nats.ping_interval"],
        ["8", "extra"],
        ["10", "storage.topic[1].pattern"],
        ["11", "storage.topic[2]"],
        ["12", "storage.topic[2].sync"],
        ["13", "storage.topic[2].foo"],
        ["15", "storage.topic[2].max_age"],
    ]
    assert found[0].endswith("unknown key (did you mean name?)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[nats]\nping_max = true\n", "2: nats.ping_max: expected a whole number, got a boolean"),
        ("[nats]\nping_max = 0\n", "2: nats.ping_max: must be between 1 and 1000, got 0"),
        ("[nats]\nmax_payload = 0\n", "2: nats.max_payload: must be between 1 and 256MiB, got 0"),
        ("[nats]\nmax_payload = 1.5\n", "2: nats.max_payload: expected a size, got a number"),
        ("[bridge]\nnsq_to_nats = 1\n", "2: bridge.nsq_to_nats: expected true or false"),
        ("[log]\nlevel = 'loud'\n", "2: log.level: must be one of debug, info, warning, error"),
        ("[nsq]\nmsg_timeout = '5'\n", "2: nsq.msg_timeout: invalid duration '5'"),
        ("[nsq]\nmsg_timeout = '0s'\n", "2: nsq.msg_timeout: must be between 1ms and 3650d"),
        ("[nsq]\nnode_id = 1024\n", "2: nsq.node_id: must be between -1 and 1023, got 1024"),
        ("[nsq]\nauth_http_addresses = ['http://x:abc/']\n", "2: nsq.auth_http_addresses: invalid"),
        ("[telemetry]\nendpoint = 'http://[::1'\n", "2: telemetry.endpoint: invalid endpoint"),
        ("[telemetry]\nendpoint = 'http://x:99999'\n", "2: telemetry.endpoint: invalid endpoint"),
        ("[storage]\nsync = 'often'\n", '2: storage.sync: must be "always", "none" or a period'),
        ("[storage]\ntopic = 1\n", "2: storage.topic: is a list: write [[storage.topic]]"),
        ("nats = 1\n", "1: nats: is a section: write [nats]"),
        ("[nats\n", "1:6: "),
        ("[nats]\nlisten = \n", "2:10: "),
        ("[nats]\nlisten = '''", "2: "),
    ],
)
def test_one_mistake(write, text: str, expected: str) -> None:
    file = write(text)
    (line,) = mistakes(file)
    assert line.startswith(f"{file}:{expected}")


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("[nats]\nmax_payload = '5MiB'\nmax_pending = '4MiB'\n", "2: nats.max_payload", "exceed"),
        ("[nats]\nmax_pending = 1000\n", "2: nats.max_pending", "exceed"),
        ("[nsq]\nmsg_timeout = '1h'\n", "2: nsq.msg_timeout", "must not exceed nsq.max_msg_time"),
        ("[nsq]\nmax_msg_size = '6MiB'\n", "2: nsq.max_msg_size", "(6MiB) must not exceed"),
        ("[storage]\nappend_buffer_max = '2MiB'\n", "2: storage.append_buffer_max", "exceed"),
        ("[nsq]\nlisten = '127.0.0.1:4222'\n", "2: nsq.listen", "also the address of nats.listen"),
        (
            "[nsq]\nhttp = ':8171'\n",
            "2: nsq.http",
            "127.0.0.1:8171 and 0.0.0.0:8171, the address of nsq.http, exclude each other",
        ),
        (
            "[nsq]\nlisten = ''\nhttp = '127.0.0.1:0'\n",
            "3: nsq.http",
            "127.0.0.1:0 would not be opened: nsq.listen is empty",
        ),
        (
            "[nats]\nlisten = ''\n[nsq]\nlisten = ''\nhttp = ''\n",
            "2: nats.listen",
            "no listener for clients is enabled: give nats.listen, nsq.listen or nsq.http",
        ),
    ],
)
def test_conflict(write, text: str, where: str, reason: str) -> None:
    file = write(text)
    (line,) = mistakes(file)
    assert line.startswith(f"{file}:{where}")
    assert reason in line


@pytest.mark.parametrize("variables", [{}, {"TWINWIRE_NSQ_HTTP": ":4151"}])
def test_nsq_is_turned_off_by_its_listener_alone(variables: dict[str, str]) -> None:
    """With the default for HTTP, and with that of the container's image."""
    assert load(None, variables | {"TWINWIRE_NSQ_LISTEN": ""}).nsq.listen is None


def test_port_zero_may_repeat_and_a_listener_may_be_off(write) -> None:
    config = load(write("[nats]\nlisten = ':0'\n[monitor]\nlisten = ''\n[nsq]\nhttp = ':0'\n"))
    assert config.nats.listen == config.nsq.http == Address("0.0.0.0", 0)
    assert config.monitor.listen is None


def test_wrong_environment_and_flag_name_their_source() -> None:
    environment = {"TWINWIRE_NATS_FOO": "1", "TWINWIRE_NSQ_MSG_TIMEOUT": "60"}
    found = mistakes(None, environment, {"--nats": "x"})
    assert [line.partition(": expected")[0] for line in sorted(found)] == [
        "--nats: nats.listen: invalid address 'x'",
        "TWINWIRE_NATS_FOO: unknown variable: [nats] has no key foo",
        "TWINWIRE_NSQ_MSG_TIMEOUT: nsq.msg_timeout: invalid duration '60'",
    ]


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        (
            "TWINWIRE_NATZ_LISTEN",
            "it begins with no section's name (did you mean TWINWIRE_NATS_LISTEN?)",
        ),
        (
            "TWINWIRE_NATS_PAYLOD",
            "[nats] has no key paylod (did you mean TWINWIRE_NATS_MAX_PAYLOAD?)",
        ),
        (
            "TWINWIRE_NATS_MAX_PAYLOD",
            "[nats] has no key max_paylod (did you mean TWINWIRE_NATS_MAX_PAYLOAD?)",
        ),
        ("Twinwire_Nats_Listen", "[nats] has no key listen (did you mean TWINWIRE_NATS_LISTEN?)"),
        (
            "TWINWIRE_DATA",
            "it begins with no section's name (did you mean TWINWIRE_SERVER_DATA?)",
        ),
        ("TWINWIRE_NSQ_PORTS", "[nsq] has no key ports"),
        ("TWINWIRE_FOO", "it begins with no section's name"),
    ],
)
def test_unknown_variable(variable: str, reason: str) -> None:
    assert mistakes(None, {variable: ":1"}) == [f"{variable}: unknown variable: {reason}"]


def test_service_links_of_kubernetes_are_ignored() -> None:
    url = "tcp://10.0.0.1:4150"
    services = ("TWINWIRE", "TWINWIRE_NSQ", "TWINWIRE_NATS_EAST", "TWINWIRE_MONITOR")
    environment = {
        f"{service}_{name}": value
        for service in services
        for name, value in {
            "SERVICE_HOST": "10.0.0.1",
            "SERVICE_PORT": "4150",
            "SERVICE_PORT_CLIENTS": "4150",
            "PORT": url,
            "PORT_4150_TCP": url,
            "PORT_4150_TCP_PROTO": "tcp",
            "PORT_4150_TCP_PORT": "4150",
            "PORT_4150_TCP_ADDR": "10.0.0.1",
        }.items()
    }
    assert load(None, environment) == load()


def test_variables_of_the_build_and_the_tests_are_no_settings() -> None:
    assert load(None, {"TWINWIRE_BUILD": "debug", "TWINWIRE_TEST_TARGET": "original"}) == load()


def test_contradictions_are_reported_beside_other_mistakes(write) -> None:
    file = write("[nats]\nmax_paylod = 5\n[nsq]\nmsg_timeout = '1h'\n[storage]\nsync = 'often'\n")
    found = mistakes(file)
    assert [line.partition(": ")[2].partition(":")[0] for line in found] == [
        "nats.max_paylod",
        "nsq.msg_timeout",
        "storage.sync",
    ]
    assert "must not exceed nsq.max_msg_timeout" in found[1]


def test_no_contradiction_is_reported_of_a_setting_that_is_misspelt_or_invalid(write) -> None:
    (line,) = mistakes(write("[nsq]\nmsg_timeout = '1h'\nmax_msg_timeot = '2h'\n"))
    assert "max_msg_timeot: unknown key" in line
    (line,) = mistakes(write("[nsq]\nmsg_timeout = '1h'\nmax_msg_timeout = '2x'\n"))
    assert "max_msg_timeout: invalid duration" in line


def test_unreadable_files(tmp_path) -> None:
    missing = tmp_path / "missing.toml"
    assert mistakes(missing) == [f"{missing}: cannot be read: No such file or directory"]
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# caf\xe9\n")
    assert mistakes(latin) == [f"{latin}: is not UTF-8 text (byte 6)"]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "twinwire.toml"
    file.write_bytes(b'\xef\xbb\xbf[storage]\r\nsync = "2s"\r\n[x]\r\n')
    assert mistakes(file) == [f"{file}:3: x: unknown section"]


def test_first_matching_topic_counts(write) -> None:
    storage = load(
        write(
            "[[storage.topic]]\npattern = 'a.*'\nmax_msgs = 5\n"
            "[[storage.topic]]\npattern = 'a.>'\nsync = 'none'\nmax_age = '1h'\n"
        )
    ).storage
    assert storage.for_topic("a.b") == TopicConfig("a.*", storage.sync, max_msgs=5)
    assert storage.for_topic("a.b.c") == TopicConfig("a.>", SyncPolicy("none"), HOUR)
    assert storage.for_topic("b") == TopicConfig(">", storage.sync)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:4222", ("127.0.0.1", 4222)),
        ("[::1]:0", ("::1", 0)),
        ("broker.example:1", ("broker.example", 1)),
        (":65535", ("0.0.0.0", 65535)),
    ],
)
def test_address(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(parse_address(text))) == expected


@pytest.mark.parametrize("text", ["", "a", "1", "a:", "a:65536", "::1:4222", "a b:1", "a:-1"])
def test_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid address|port must be"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("250ms", 250), ("1m30s", 90_000), ("2h", 7_200_000), ("1.5s", 1_500), ("1d", 86_400_000)],
)
def test_duration(text: str, expected: int) -> None:
    assert parse_duration(text) == expected * MS


@given(st.integers(0, DURATION_MAX // US))
def test_duration_round_trip(microseconds: int) -> None:
    duration_ns = microseconds * US
    assert parse_duration(duration_text(duration_ns)) == duration_ns


def test_key_lines_see_through_values() -> None:
    text = '''a = """
b = 1
"""
c.d = { e = "[x]" } # f = 1
[ "g h" ]
i = [
  # j = 1
  "k = 1", [ '[l]' ],
]
[[m]]
[[m]]
n = 1
[m.o]
p = 1'''
    tomllib.loads(text)
    assert key_lines(text) == {
        ("a",): 1,
        ("c",): 4,
        ("c", "d"): 4,
        ("g h",): 5,
        ("g h", "i"): 6,
        ("m",): 10,
        ("m", 0): 10,
        ("m", 1): 11,
        ("m", 1, "n"): 12,
        ("m", "o"): 13,
        ("m", "o", "p"): 14,
    }


@pytest.mark.parametrize("given", ["user", "password"])
def test_a_login_for_monitoring_is_two_keys(write, given) -> None:
    (line,) = mistakes(write(f'[monitor]\n{given} = "x"\n'))
    assert "a user and a password go together" in line
    config = load(write('[monitor]\nuser = "ops"\n'), {"TWINWIRE_MONITOR_PASSWORD": "hidden"})
    assert config.monitor.password == "hidden"
    assert "hidden" not in repr(config)
