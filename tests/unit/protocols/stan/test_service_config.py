"""[stan]: its keys, the entries for single channels, and what contradicts what."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from support.configuration import mistakes

from broker.base.settings import settings
from broker.base.units import HOUR, MIB, MINUTE
from broker.config.config import Config
from broker.config.load import load
from broker.protocols.stan.config import ChannelLimits, StanChannelConfig, StanConfig
from broker.server.engine import access_of

COMMENTED = Path(__file__).resolve().parents[4] / "conf" / "twinwire.toml"


def example() -> str:
    text = COMMENTED.read_text()
    begin = text.index("# [[stan.channel]]")
    return re.sub(r"(?m)^# ", "", text[begin : text.index("\n\n", begin)]) + "\n"


def test_it_is_off_unless_asked_for() -> None:
    assert Config().stan.enabled is False


def test_commented_channel_has_every_key(write) -> None:
    table = tomllib.loads(example())["stan"]["channel"][0]
    assert list(table) == list(settings(StanChannelConfig))
    (entry,) = load(write(example())).stan.channel
    assert entry == StanChannelConfig("orders.>", 10, 5_000, 10 * MIB, HOUR, 0)


def test_what_is_left_out_of_an_entry_is_inherited(write) -> None:
    config = load(
        write(
            "[stan]\nmax_msgs = 7\n"
            "[[stan.channel]]\npattern = 'a.>'\nmax_subs = 0\n"
            "[[stan.channel]]\npattern = 'a.b'\nmax_age = '1m'\nmax_bytes = '1KiB'\n"
        )
    )
    found = config.stan.limits_for("a.b")
    assert found == ChannelLimits(7, 1_024, MINUTE, 0, 0)


def test_the_bridge_says_what_crosses(write) -> None:
    config = load(write("[bridge]\nstan_to_nats = false\n"))
    assert (access_of(config).stan_to_nats, access_of(config).nats_to_stan) == (False, True)


def test_nsq_and_streaming_share_unless_nsq_asks_for_secrets(write) -> None:
    auth = '[nsq]\nauth_http_addresses = ["127.0.0.1:1"]\n'
    bridge = "[bridge]\nstan_to_nsq = true\n"
    for text, expected in (
        ("", (True, True)),
        (auth, (False, False)),
        (auth + bridge, (True, False)),
        ("[bridge]\nnsq_to_stan = false\n", (True, False)),
        (auth + '[bridge]\nnsq_to_stan = "auto"\n', (False, False)),
    ):
        access = access_of(load(write(text)))
        assert (access.stan_to_nsq, access.nsq_to_stan) == expected, text
    config = load(write("[bridge]\nnats_to_stan = false\n"))
    assert (access_of(config).stan_to_nats, access_of(config).nats_to_stan) == (True, False)


@pytest.mark.parametrize(
    ("word", "expected"), [("always", "always"), ("none", "none"), ("250ms", 0.25)]
)
def test_sync(write, word: str, expected: str | float) -> None:
    assert load(write(f"[stan]\nsync = '{word}'\n")).stan.sync.policy == expected


def test_environment(write) -> None:
    found = load(None, {"TWINWIRE_STAN_ENABLED": "true", "TWINWIRE_STAN_MAX_BYTES": "1MiB"})
    assert found.stan == StanConfig(enabled=True, max_bytes=MIB)
    assert mistakes(None, {"TWINWIRE_STAN_CHANNEL": "x"}) == [
        (
            "TWINWIRE_STAN_CHANNEL: unknown variable: [stan] has no key channel"
            " (did you mean TWINWIRE_STAN_MAX_CHANNELS?)"
        )
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[stan]\nclusterid = 'x'\n", "2: stan.clusterid: unknown key (did you mean cluster_id?)"),
        ("[stan]\ncluster_id = 'a b'\n", "2: stan.cluster_id: not part of a subject: 'a b'"),
        ("[stan]\ncluster_id = ''\n", "2: stan.cluster_id: not part of a subject: ''"),
        ("[stan]\ndiscover_prefix = 'a.>'\n", "2: stan.discover_prefix: not part of a subject"),
        ("[stan]\naccount = ''\n", "2: stan.account: is empty"),
        ("[stan]\nstore = 'sql'\n", "2: stan.store: must be one of file, memory"),
        ("[stan]\nmax_msgs = -1\n", "2: stan.max_msgs: must be between 0 and"),
        ("[stan]\nhb_interval = 'off'\n", "2: stan.hb_interval: invalid duration 'off'"),
        ("[stan]\nchannel = 1\n", "2: stan.channel: is a list: write [[stan.channel]]"),
        ("[[stan.channel]]\nmax_msgs = 1\n", "1: stan.channel[1]: pattern is missing"),
        ("[[stan.channel]]\npattern = 'a*'\n", "2: stan.channel[1].pattern: not a pattern of"),
        ("[[stan.channel]]\npattern = 'a/b'\n", "2: stan.channel[1].pattern: not a pattern of"),
        ("[[stan.channel]]\npattern = '>.a'\n", "2: stan.channel[1].pattern: not a pattern: "),
        ("[[stan.channel]]\npattern = 'a'\nmax = 1\n", "3: stan.channel[1].max: unknown key"),
        (
            "[[stan.channel]]\npattern = 'a'\n[[stan.channel]]\npattern = 'a'\n",
            "1: stan.channel: the pattern 'a' is there twice",
        ),
        (
            "[stan]\nmax_channels = 1\nchannel = [{pattern='a'}, {pattern='b'}, {pattern='c.*'}]",
            "2: stan.max_channels: is 1, but [[stan.channel]] names 2",
        ),
    ],
)
def test_one_mistake(write, text: str, expected: str) -> None:
    file = write(text)
    (line,) = mistakes(file)
    assert re.sub(r"^[^:]*:", "", line).startswith(expected)


def test_as_many_channels_as_there_may_be_can_be_named(write) -> None:
    text = "[stan]\nmax_channels = 2\nchannel = [{pattern='a'}, {pattern='b'}, {pattern='c.*'}]"
    assert len(load(write(text)).stan.channel) == 3
    assert len(load(write(text.replace("= 2", "= 0"))).stan.channel) == 3


def test_entries_for_topics_stay_what_they_were(write) -> None:
    config = load(
        write("[[storage.topic]]\npattern = 'a'\n[[stan.channel]]\npattern = 'b'\nmax_msgs = 0\n")
    )
    assert [entry.pattern for entry in config.storage.topic] == ["a"]
    assert config.stan.channel == (StanChannelConfig("b", max_msgs=0),)
