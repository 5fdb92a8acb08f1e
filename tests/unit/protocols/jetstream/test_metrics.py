"""The series of JetStream, under our names and under the exporter's."""

from __future__ import annotations

import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from broker.protocols.jetstream import limits
from broker.protocols.jetstream.metrics import (
    AccountNumbers,
    ConsumerNumbers,
    JetStreamNumbers,
    OriginNumbers,
    StreamNumbers,
    exported_block,
    own_block,
)
from broker.server.exposition import render

NOW = time.time_ns()
CONSUMER = ConsumerNumbers("c", "what it is", 9, 8, NOW - 3_000_000_000, 7, 6, 0, 5, 4, 3, 2)
STREAM = StreamNumbers(
    "S", 10, 11, 12, 13, 14, 15, 16, 17, 18, -1, 20, 1,
    [CONSUMER], [OriginNumbers("O", True, 21, 22), OriginNumbers("P", False, 23, -1)],
)  # fmt: skip
FACTS = JetStreamNumbers(
    "ID", "name", "hub", 100, 200, [AccountNumbers("A", 1, 2, -1, 4, 5, 6, 7, [STREAM])]
)
SERVER = {
    "server_id": "ID", "server_name": "name", "cluster": "", "domain": "hub", "meta_leader": "",
    "is_meta_leader": "true",
}  # fmt: skip
VALUES = {
    "twinwire_jetstream_streams": 1,
    "twinwire_jetstream_offline_streams": 7,
    "twinwire_jetstream_memory_bytes": 1,
    "twinwire_jetstream_storage_bytes": 2,
    "twinwire_jetstream_api_requests_total": 5,
    "twinwire_jetstream_api_errors_total": 6,
    "twinwire_jetstream_stream_messages": 10,
    "twinwire_jetstream_stream_stored_total": 15,
    "twinwire_jetstream_stream_lost_messages": 18,
    "twinwire_jetstream_consumer_pending": 2,
    "twinwire_jetstream_consumer_ack_pending": 5,
    "twinwire_jetstream_consumer_delivered_total": 9,
    "twinwire_jetstream_consumer_ack_floor": 6,
    "jetstream_server_total_consumers": 1,
    "jetstream_server_max_storage": 200,
    "jetstream_account_max_memory": float(2**64 - 1),  # no limit
    "jetstream_account_storage_used": 2,
    "jetstream_stream_total_bytes": 11,
    "jetstream_stream_limit_bytes": 20,
    "jetstream_stream_mirror_lag": 21,
    "jetstream_stream_source_lag": 23,
    "jetstream_consumer_delivered_stream_seq": 8,
    "jetstream_consumer_num_redelivered": 4,
    "jetstream_consumer_ack_floor_consumer_seq": 7,
}


def test_many_streams_have_only_our_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JS_EXPORTED_MAX", 1)
    page = render([own_block(FACTS), exported_block(FACTS)])[0].decode()
    assert "\njetstream_account_max_memory{" in page
    assert "\njetstream_stream_" not in page
    assert "\njetstream_consumer_" not in page
    assert "\ntwinwire_jetstream_consumer_pending{" in page


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_values_and_labels(accept: str) -> None:
    page = render([own_block(FACTS), exported_block(FACTS)], accept)[0].decode()
    parse = parse_open if accept else parse_text
    samples = [sample for family in parse(page) for sample in family.samples]
    found = {sample.name: sample for sample in samples}
    assert {name: found[name].value for name in VALUES} == VALUES
    assert found["twinwire_jetstream_consumer_pending"].labels == {
        "account": "A", "stream": "S", "consumer": "c",
    }  # fmt: skip
    assert found["jetstream_server_total_streams"].labels == SERVER
    consumer = found["jetstream_consumer_num_pending"].labels
    assert consumer["consumer_desc"] == "what it is"
    assert consumer["stream_leader"] == consumer["consumer_leader"] == "name"
    lag = [sample for sample in samples if sample.name == "twinwire_jetstream_origin_lag"]
    assert {sample.labels["origin"]: sample.value for sample in lag} == {"O": 21, "P": 23}
    assert found["jetstream_consumer_last_delivery_seconds"].value >= 3
    assert "jetstream_consumer_last_ack_seconds" not in found  # it has acked nothing
