"""Options: every name, any case, and what cannot be meant."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker.spark.errors import OptionError
from broker.spark.limits import READER_TTL_BATCH_S, READER_TTL_STREAM_S
from broker.spark.options import Wanted, is_subject_filter
from broker.spark.source.options import READ, read_settings
from broker.spark.source.positions import EARLIEST, LATEST

LEAST = {"servers": "a:1", "subscribe": "t"}


def refused(options: Mapping[str, str], *, stream: bool = False) -> str:
    with pytest.raises(OptionError) as raised:
        read_settings({**LEAST, **options}, stream=stream)
    return str(raised.value)


def test_defaults() -> None:
    batch = read_settings(LEAST, stream=False)
    assert batch.access.servers == ("a:1",)
    assert batch.access.options.retries == 5
    assert batch.access.options.timeout_s == 30.0
    assert batch.access.options.fetch_bytes == 4 << 20
    assert batch.reading.fail_on_loss
    assert not batch.reading.headers
    assert batch.splitting.records_per_partition == 500_000
    assert batch.start.default == EARLIEST
    assert batch.end is not None
    assert batch.end.default == LATEST
    assert batch.progress.ttl_s == READER_TTL_BATCH_S
    stream = read_settings(LEAST, stream=True)
    assert stream.start.default == LATEST
    assert stream.end is None
    assert stream.progress.ttl_s == READER_TTL_STREAM_S
    assert not stream.progress.required


def test_names_in_any_case() -> None:
    given = {name.upper(): value for name, value in LEAST.items()}
    settings = read_settings({**given, "MAXOFFSETSPERTRIGGER": "7"}, stream=True)
    assert settings.splitting.records_per_trigger == 7


def test_unknown_names_are_refused_with_a_hint() -> None:
    assert "did you mean 'startingOffsets'?" in refused({"startingOffset": "latest"})
    assert "unknown option 'zzz'" in refused({"zzz": "1"})


VALUES = {
    "servers": "a:1,https://b:2", "token": "secret", "tls.ca": "ca.pem", "tls.cert": "c.pem",
    "tls.key": "k.pem", "tls.serverName": "broker", "fetchRetries": "0", "fetchTimeoutMs": "100",
    "keyHeader": "Key", "subscribe": "a, b", "startingOffsets": "earliest", "gapRows": "true",
    "failOnDataLoss": "FALSE", "includeHeaders": "true", "includeMetadata": "true",
    "subjectFilter": "a.*.>", "maxOffsetsPerTrigger": "5", "minPartitions": "3",
    "maxRecordsPerPartition": "10", "fetchBytes": "1m", "fetchCompression": "zstd",
    "reader": "lake", "hold": "false", "readerTtl": "2h",
}  # fmt: skip


def test_every_value_is_read() -> None:
    settings = read_settings(VALUES, stream=True)
    assert settings.access.servers == ("a:1", "https://b:2")
    access = settings.access.options
    assert (access.token, access.retries, access.timeout_s) == ("secret", 0, 0.1)
    assert (access.fetch_bytes, access.compress) == (1 << 20, "zstd")
    assert access.tls is not None
    assert (access.tls.ca_file, access.tls.server_name) == ("ca.pem", "broker")
    assert "secret" not in repr(settings)
    assert settings.wanted == Wanted(names=("a", "b"))
    reading = settings.reading
    assert (reading.fail_on_loss, reading.gap_rows, reading.headers) == (False, True, True)
    assert (reading.metadata, reading.key_header, reading.subject_filter) == (True, "Key", "a.*.>")
    assert (settings.splitting.partitions_min, settings.splitting.records_per_partition) == (3, 10)
    progress = settings.progress
    assert (progress.name, progress.hold, progress.ttl_s) == ("lake", False, 7200)
    assert progress.required


BAD = {
    "servers": ["", "a:b", "a:1,,b:1", "ftp://a:1"],
    "subscribe": ["", "a,,b"],
    "fetchRetries": ["-1", "x", "1.5"],
    "fetchTimeoutMs": ["0"],
    "fetchBytes": ["10", "65m", "4q"],
    "fetchCompression": ["lz4"],
    "failOnDataLoss": ["yes"],
    "maxOffsetsPerTrigger": ["0", "-5", "many"],
    "maxBytesPerTrigger": ["0"],
    "minPartitions": ["0"],
    "maxRecordsPerPartition": ["0"],
    "subjectFilter": ["", "a..b", "a.>.b", "a b"],
    "reader": ["", "a/b", "x" * 129],
    "readerTtl": ["0", "3w"],
    "startingOffsets": ["", "first", "{", "[]", "{}", '{"t": {"0": -3}}', '{"t": {"x": 1}}'],
    "startingTimestamp": ["-1", "yesterday"],
    "startingOffsetsByTimestamp": ['{"t": {"0": -1}}', '{"t": 5}'],
    "startingOffsetsByTimestampStrategy": ["earliest"],
}
PAIRS = [(name, value) for name, values in BAD.items() for value in values]


@pytest.mark.parametrize(("name", "value"), PAIRS)
def test_values_that_cannot_be(name: str, value: str) -> None:
    assert repr(name) in refused({name: value}, stream=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token": "a", "tokenFile": "b"}, ["token", "tokenFile"]),
        ({"tls.key": "k"}, ["tls.key", "tls.cert"]),
        ({"subscribePattern": "x.*"}, ["subscribe", "subscribePattern", "assign"]),
        ({"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, ["exclude"]),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, ["exclude"]),
        ({"gapRows": "true"}, ["gapRows", "failOnDataLoss"]),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, str], words: list[str]) -> None:
    text = refused(options, stream=True)
    assert [word for word in words if word not in text] == []


def test_one_subscription_is_required() -> None:
    with pytest.raises(OptionError, match="subscribePattern"):
        read_settings({"servers": "a:1"}, stream=False)
    with pytest.raises(OptionError, match="'servers' is required"):
        read_settings({"subscribe": "t"}, stream=False)


def test_ends_are_for_batches() -> None:
    assert "a stream has no end" in refused({"endingOffsets": "latest"}, stream=True)
    assert "a stream has no end" in refused({"endingTimestamp": "1"}, stream=True)
    assert "read nothing" in refused({"startingOffsets": "latest"})
    assert "read nothing" in refused({"endingOffsets": "earliest"})
    assert "an end" in refused({"endingOffsets": '{"t": {"0": -2}}'})


def test_a_pattern_must_compile() -> None:
    with pytest.raises(OptionError, match="regular expression"):
        read_settings({"servers": "a:1", "subscribePattern": "("}, stream=False)


def test_assigned_partitions() -> None:
    options = {"servers": "a:1", "assign": '{"t": [0, 2], "u": [1]}'}
    wanted = read_settings(options, stream=False).wanted
    assert wanted.names == ("t", "u")
    assert wanted.has("t", 2)
    assert not wanted.has("t", 1)
    assert not wanted.has("v", 0)
    for text in ("[]", "{}", '{"t": []}', '{"t": ["x"]}', '{"t": 1}'):
        with pytest.raises(OptionError, match="assign"):
            read_settings({"servers": "a:1", "assign": text}, stream=False)


def test_a_pattern_matches_whole_names() -> None:
    wanted = Wanted(pattern="orders.*")
    assert wanted.has("orders-eu", 0)
    assert not wanted.has("old-orders", 0)


def test_known_names_are_those_of_the_reference() -> None:
    assert {"source.path"} & set(READ) == set()  # not built: refused, not passed over
    assert len(READ) == len(set(READ))


def test_subject_filters() -> None:
    assert is_subject_filter("a.*.>")
    assert is_subject_filter(">")
    assert not is_subject_filter("a.>.b")
