"""What flags and files of nats-streaming-server come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.base.units import HOUR, MINUTE, SECOND
from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_streaming import flags
from broker.cli.dropin.nats_streaming.command import everything, read_files
from broker.cli.dropin.nats_streaming.settings import Asked
from broker.engine.config import SyncPolicy
from broker.protocols.nats.auth.nkeys import USER, KeyPair
from broker.protocols.nats.conf.text import ConfErrors
from broker.protocols.nats.settings import ORIGINAL
from broker.protocols.stan.config import StanChannelConfig, StanConfig


@pytest.fixture
def asked(tmp_path: Path):
    """What comes of a file and flags."""

    def asked(text: str, *args: str, nats: str = "") -> Asked:
        given = list(args)
        for name, content in (("-sc", text), ("-c", nats)):
            if content:
                path = tmp_path / f"file{name}"
                path.write_text(content)
                given += [name, str(path)]
        own, others, _ = flags.read(given)
        return everything(flags.sizes(own), others)

    return asked


def test_nothing_said(asked) -> None:
    found = asked("")
    assert found.stan == StanConfig(enabled=True, store="memory")
    assert (found.folder, found.file, found.problem, found.remarks) == (None, "", "", ())
    assert found.settings == ORIGINAL


ALL = """
port: 5222
streaming {
  cid: "c", discover_prefix: "d", st: file, datastore: "/data", sd: true, sv: true
  hbi: "1s", hbt: "2s", hbf: 3, replace_durables: true
  limits {
    mc: 4, msu: 5, mm: 6, mb: 7KB, ma: "8s", mi: "9m"
    per_channel { "x.*": {msu: 1, mm: 0, mb: 2, ma: "0s"}, y: {mi: "1h"} }
  }
  file_options { do_sync: false, auto_sync: "3s" }
}
"""
LIMITS = {
    "max_msgs": 6,
    "max_bytes": 7 * 1024,
    "max_age_ns": 8 * SECOND,
    "max_subs": 5,
    "max_inactivity_ns": 9 * MINUTE,
}


@pytest.mark.parametrize("block", [True, False])
def test_every_key(asked, block: bool) -> None:
    text = ALL if block else ALL.replace("streaming {", "").rpartition("}")[0]
    found = asked(text)
    assert found.settings.listen[1] == 5222
    assert found.folder == Path("/data")
    assert (found.debug, found.trace) == (True, True)
    assert found.stan == StanConfig(
        enabled=True,
        cluster_id="c",
        discover_prefix="d",
        store="file",
        sync=SyncPolicy("period", 3 * SECOND),
        replace_durable=True,
        hb_interval_ns=SECOND,
        hb_timeout_ns=2 * SECOND,
        hb_fail_count=3,
        max_channels=4,
        **LIMITS,
        channel=(
            StanChannelConfig("x.*", max_subs=1, max_msgs=0, max_bytes=2, max_age_ns=0),
            StanChannelConfig("y", max_inactivity_ns=HOUR),
        ),
    )


def test_flags_win_over_files(asked) -> None:
    found = asked(
        ALL,
        *("-cid", "f", "-store", "MEMORY", "--max_channels=40", "-max_bytes", "70", "-mm", "60"),
        *("-hb_interval", "10s", "-replace_durable=false", "-p", "6222", "-SDV=false"),
    )
    assert found.settings.listen[1] == 6222
    stan = found.stan
    assert (stan.cluster_id, stan.store, stan.max_channels) == ("f", "memory", 40)
    assert (stan.limits.max_bytes, stan.limits.max_msgs, stan.limits.max_subs) == (70, 60, 5)
    assert (stan.hb_interval_ns, stan.hb_timeout_ns) == (10 * SECOND, 2 * SECOND)
    assert (stan.replace_durable, found.debug, found.trace, found.folder) == (
        *(False, False, False),
        None,
    )


def test_two_files_are_each_for_one(asked) -> None:
    found = asked("streaming { id: a }\nport: 1", nats="streaming { id: b }\nport: 7222")
    assert (found.stan.cluster_id, found.settings.listen[1]) == ("a", 7222)


def test_one_file_for_the_nats_server_is_for_both(asked) -> None:
    found = asked("", nats="streaming { id: b }\nport: 7222")
    assert (found.stan.cluster_id, found.settings.listen[1]) == ("b", 7222)


@pytest.mark.parametrize(
    ("text", "sync"),
    [
        ("", "always"),
        ("file { sync: true, auto_sync: '1s' }", "always"),
        ("file { sync: false }", 60.0),
        ("file { sync: false, auto_sync: '-1s' }", "none"),
        ("file { sync: false, auto_sync: '0s' }", "none"),
    ],
)
def test_when_it_syncs(asked, text: str, sync: str | float) -> None:
    assert asked(text).stan.sync.policy == sync


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("streaming: 5", ":1:1: streaming: expected a map, got a number"),
        ("streaming { id: 5 }", ":1:13: id: expected a string, got a number"),
        ("streaming { hbi: 5 }", ":1:13: hbi: expected a string, got a number"),
        ("streaming { hbi: '5' }", ":1:13: hb_interval: '5' is not a duration"),
        ("streaming { store: tape }", ":1:13: unknown store type: tape"),
        ("limits { mm: many }", "mm: expected a number, got a string"),
        ("limits { channels { 'a b*': {} } }", 'invalid channel name "a b*"'),
        ("limits { channels { a: 5 } }", "a: expected a map, got a number"),
        ("limits: 5", "limits: expected a map, got a number"),
        ("file: 5", "file: expected a map, got a number"),
        ("port: x", "port: expected a number"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(asked, text: str, reason: str) -> None:
    with pytest.raises(ConfErrors) as caught:
        asked(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "streaming { ns: 'nats://x:1' }",
        "streaming { ft_group: x }",
        "streaming { partitioning: true }",
        "streaming { cluster { node_id: a } }",
        "streaming { encrypt: true }",
        "streaming { encryption_key: k }",
        "streaming { store: sql }",
        "streaming { credentials: file }",
        "streaming { file { slice_archive_script: x } }",
    ],
)
def test_what_is_not_here(asked, text: str) -> None:
    with pytest.raises(FlagError, match="is not supported: "):
        asked(text)


SEED = KeyPair(USER)
USERS = f"""
accounts {{
  A {{ users: [{{user: a, password: x}}] }}
  B {{ users: [{{user: b, password: x}}, {{nkey: {SEED.public}}}] }}
}}
"""


@pytest.mark.parametrize(
    ("text", "account"),
    [
        ("port: 1", "$G"),
        ("authorization { user: u, password: p }", "$G"),
        ("authorization { token: t }", "$G"),
        ("authorization { users: [{user: u, password: p}] }\nstreaming { user: u }", "$G"),
        (USERS + "streaming { username: b, password: x }", "B"),
        (USERS + "streaming { username: c }", ""),
        (USERS, ""),
        (USERS + "no_auth_user: a", "A"),
    ],
)
def test_the_account_that_is_served(asked, text: str, account: str) -> None:
    assert asked(text).stan.account == account


def test_the_account_of_an_nkey(asked, tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text(f"# a key\n{SEED.seed}\n")
    assert asked(f"{USERS}streaming {{ nkey_seed_file: '{seed}' }}").stan.account == "B"
    seed.write_text("nothing")
    with pytest.raises(FlagError, match="not a seed"):
        asked(f"{USERS}streaming {{ nkey_seed_file: '{seed}' }}")


def test_the_store_of_an_original_is_not_passed_over(asked, tmp_path: Path) -> None:
    flags = ("-st", "FILE", "-dir", str(tmp_path))
    assert asked("", *flags).problem == ""
    (tmp_path / "server.dat").write_bytes(b"")
    assert "twinwire import-stan" in asked("", *flags).problem
    assert asked("", "-dir", str(tmp_path)).problem == ""


def test_no_files() -> None:
    found = read_files("", "")
    assert (found.own, found.channels, found.warnings) == ({}, {}, [])
