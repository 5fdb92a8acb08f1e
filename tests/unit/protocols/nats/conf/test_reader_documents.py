"""The sample configuration and the page about it tell all keys, and what is true of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.conf_corpus import ENVIRONMENT, cases, make_files

from broker.protocols.nats.conf import fields
from broker.protocols.nats.conf.reader import ConfErrors, ConfNote, read_file, read_text
from broker.protocols.nats.settings import ORIGINAL

ROOT = Path(__file__).parents[5]
SAMPLE = ROOT / "conf" / "nats-server.conf"
PAGE = ROOT / "docs" / "reference" / "nats-configuration.md"

# What is not available is not in the sample; the keys in these blocks are not reported one by one.
BLOCKS_LEFT_OUT = {"cluster", "gateway", "mqtt", "ocsp", "compression"}
LEFT_OUT = {"gateway", "mqtt", "prof_port", "prof_block_rate", "ocsp",
            "ocsp_cache", "default_js_domain", "ocsp_peer", "cert_store", "cert_match",
            "cert_match_by", "verify_cert_and_check_known_urls",
            "jetstream_cluster_migrate",
            # of JetStream
            "key", "prev_key", "tpm", "cipher", "unique_tag", "extension_hint", "batch",
            "max_outstanding_catchup", "max_buffered_size", "max_buffered_msgs", "info_queue_limit",
            "meta_compact", "meta_compact_size", "meta_compact_sync", "max_concurrent_io",
            "max_ha_assets", "cluster_traffic"}  # fmt: skip


@pytest.fixture(autouse=True)
def at_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, tuple[str, ...]]]:
    """Block and names of every key that is asked for while the corpus is read."""
    found = set()
    take = fields.Block.take

    def noted(self: fields.Block, *names: str) -> object:
        found.add((self.what, names))
        return take(self, *names)

    monkeypatch.setattr(fields.Block, "take", noted)
    for case in (*cases("good"), *cases("bad")):
        with contextlib.suppress(ConfErrors):
            read_text(case.text, ENVIRONMENT)
    return found


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def test_the_sample_holds_the_defaults() -> None:
    assert read_file(SAMPLE, {}) == (ORIGINAL, [])


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("tls { ca_certs_match: x }", "2.11"),
    ],
)
def test_keys_of_later_servers_are_no_typing_mistakes(text: str, release: str) -> None:
    with pytest.raises(ConfErrors) as failure:
        read_text(text, {})
    remark = f"a key of nats-server {release} and later, which is not available here"
    assert re.search(rf'unknown field "\w+": {remark}', str(failure.value))


def test_only_keys_of_their_block_are_later_ones() -> None:
    with pytest.raises(ConfErrors) as failure:
        read_text("headers: {}", {})
    assert str(failure.value).endswith('unknown field "headers"')


def test_the_sample_has_every_key(asked: set[tuple[str, tuple[str, ...]]]) -> None:
    there = words(SAMPLE.read_text())
    assert [
        names
        for what, names in asked
        if what not in BLOCKS_LEFT_OUT and there.isdisjoint(names) and LEFT_OUT.isdisjoint(names)
    ] == []


def test_the_page_has_every_name(asked: set[tuple[str, tuple[str, ...]]]) -> None:
    there = words(PAGE.read_text())
    names = {name for what, names in asked for name in names if what not in BLOCKS_LEFT_OUT}
    assert names - there == set()


def test_every_name_is_in_the_good_corpus(asked: set[tuple[str, tuple[str, ...]]]) -> None:
    there = words(" ".join(case.text for case in cases("good")))
    names = {name for what, names in asked for name in names if what not in BLOCKS_LEFT_OUT}
    assert names - there - LEFT_OUT == set()


def sections() -> Iterator[tuple[str, str]]:
    """Of the sample, with everything set that stands there."""
    for part in re.split(r"^# --- ", SAMPLE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition(" -")
        lines, depth = list[str](), 0
        for line in body.partition("\n")[2].splitlines():
            unset = line.startswith("#") and (depth > 0 or line[1:2].strip() != "")
            text = line[1:] if unset else line
            lines.append(text)
            if unset:
                plain = re.sub(r'"[^"]*"|#.*', "", text)
                depth += sum(plain.count(c) for c in "{[") - sum(plain.count(c) for c in "}]")
        yield title, "\n".join(lines)


@pytest.mark.parametrize(("title", "text"), list(sections()))
def test_what_is_not_set_in_the_sample_could_be(title: str, text: str) -> None:
    settings, warnings = read_text(text, ENVIRONMENT)
    assert [warning for warning in warnings if not isinstance(warning, ConfNote)] == []
    if title not in {"Log", "A cluster's name", "Our own"}:
        assert settings != ORIGINAL
