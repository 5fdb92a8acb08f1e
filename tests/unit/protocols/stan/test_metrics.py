"""The series of NATS Streaming, under our names and under the exporter's."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from broker.protocols.stan.metrics import StanFacts, stan_block
from broker.server.exposition import render

SUB = {
    "client_id": "me",
    "inbox": "in",
    "ack_inbox": "ack",
    "queue_name": "d:q",
    "is_durable": True,
    "is_offline": False,
    "max_inflight": 9,
    "ack_wait": 30,
    "last_sent": 8,
    "pending_count": 7,
    "is_stalled": False,
}
FACTS = StanFacts(
    {
        "cluster_id": "c",
        "server_id": "S",
        "version": "0.25.6",
        "go": "python",
        "state": "STANDALONE",
        "start_time": "now",
        "clients": 1,
        "subscriptions": 2,
        "channels": 3,
        "total_msgs": 4,
        "total_bytes": 5,
        "in_msgs": 6,
        "in_bytes": 7,
        "out_msgs": 8,
        "out_bytes": 9,
    },
    [
        {"name": "a", "msgs": 4, "bytes": 5, "first_seq": 1, "last_seq": 6, "subscriptions": [SUB]},
        {"name": "b", "msgs": 0, "bytes": 0, "first_seq": 0, "last_seq": 0},
    ],
)
NAMES = {
    "twinwire_stan_messages_received_total": 6,
    "twinwire_stan_received_bytes_total": 7,
    "twinwire_stan_messages_sent_total": 8,
    "twinwire_stan_sent_bytes_total": 9,
    "twinwire_stan_clients": 1,
    "twinwire_stan_subscriptions": 2,
    "twinwire_stan_channels": 3,
    "nss_server_bytes_total": 5,
    "nss_server_msgs_total": 4,
    "nss_server_channels": 3,
    "nss_server_subscriptions": 2,
    "nss_server_clients": 1,
    "nss_server_info": 1,
    "nss_chan_bytes_total": 5,
    "nss_chan_msgs_total": 4,
    "nss_chan_last_seq": 6,
    "nss_chan_subs_last_sent": 8,
    "nss_chan_subs_pending_count": 7,
    "nss_chan_subs_max_inflight": 9,
}


@pytest.mark.parametrize(
    ("accept", "parse"),
    [("", parse_text), ("application/openmetrics-text; version=1.0.0", parse_open)],
)
def test_series(accept: str, parse) -> None:
    page, _ = render([stan_block(FACTS)], accept)
    samples = [s for family in parse(page.decode()) for s in family.samples]
    found = {s.name: s for s in samples if s.labels.get("channel", "a") == "a"}
    for name, value in NAMES.items():
        assert found[name].value == value, name
    assert {s.name for s in samples if s.name.startswith(("nss", "twinwire"))} == set(NAMES)
    assert found["nss_server_info"].labels == {
        "server": "S",
        "cluster_id": "c",
        "server_id": "S",
        "version": "0.25.6",
        "go_version": "python",
        "state": "STANDALONE",
        "role": "",
        "start_time": "now",
    }
    assert found["nss_chan_subs_last_sent"].labels == {
        "server": "S",
        "channel": "a",
        "client_id": "me",
        "inbox": "in",
        "queue_name": "d:q",
        "is_durable": "true",
        "is_offline": "false",
    }
