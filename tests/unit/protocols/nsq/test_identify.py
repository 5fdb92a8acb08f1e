"""IDENTIFY: Go's reading of JSON, defaults, bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.base.units import SECOND
from broker.protocols.nsq import limits
from broker.protocols.nsq.config import NsqConfig
from broker.protocols.nsq.identify import Identity, Refused, read_fields

CONFIG = NsqConfig()
BEFORE = Identity.before("192.0.2.1")


def identify(now: Identity = BEFORE, **fields: Any) -> Identity:
    return Identity.read(json.dumps(fields).encode(), CONFIG, now)


def refusal(body: bytes) -> bytes:
    with pytest.raises(Refused) as caught:
        Identity.read(body, CONFIG, BEFORE)
    return caught.value.payload


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"{}", {}),
        (b" null ", {}),
        (b'{"client_id":"a","Client_ID":"b"}', {"client_id": "b"}),
        (b'{"MSG_TIMEOUT":5,"x":{"msg_timeout":6},"hostname":null}', {"msg_timeout": 5}),
        (b'{"\xc5\xbfample_rate":5}', {"sample_rate": 5}),
        (b'{"client_id":"\xff"}', {"client_id": "\ufffd"}),
        (b'{"msg_timeout":-0}', {"msg_timeout": 0}),
        (b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", {}),
        (b'{"snappy":true,"deflate_level":9}', {"snappy": True, "deflate_level": 9}),
    ],
)
def test_accepted(body: bytes, fields: dict[str, object]) -> None:
    assert read_fields(body) == fields


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"true", b'"x"', b"{} x", b"{", b"\xef\xbb\xbf{}", b'{"a":NaN}', b'{"a":1,}',
        b'{"msg_timeout":"5"}', b'{"msg_timeout":5.0}', b'{"msg_timeout":1e4}',
        b'{"msg_timeout":01}', b'{"msg_timeout":true}', b'{"msg_timeout":9223372036854775808}',
        b'{"sample_rate":2147483648}', b'{"client_id":5}', b'{"snappy":1}', b'{"tls_v1":"true"}',
        b'{"client_id":"a\tb"}',
    ],
)  # fmt: skip
def test_not_such_an_object(body: bytes) -> None:
    assert refusal(body) == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_before_and_after_an_empty_one() -> None:
    assert (BEFORE.client_id, BEFORE.hostname) == ("192.0.2.1", "192.0.2.1")
    after = identify()
    assert (after.client_id, after.hostname, after.user_agent) == ("", "", "")
    assert after.heartbeat_interval_ns == 30 * SECOND
    assert after.wait_ns(CONFIG) == CONFIG.msg_timeout_ns


def test_minus_one() -> None:
    assert identify(heartbeat_interval=-1).heartbeat_interval_ns == 0
    assert identify(output_buffer_timeout=-1).flush_ns(CONFIG) == 0
    small = identify(output_buffer_size=-1, output_buffer_timeout=500)
    assert (small.output_buffer_size, small.flush_ns(CONFIG)) == (1, 0)


@pytest.mark.parametrize(
    ("field", "what", "good", "bad"),
    [
        ("heartbeat_interval", "heartbeat interval", (1000, 60000), (-2, 1, 999, 60001)),
        ("output_buffer_timeout", "output buffer timeout", (25, 30000), (-2, 24, 30001)),
        ("output_buffer_size", "output buffer size", (64, 65536), (-2, 63, 65537)),
        ("sample_rate", "sample rate", (0, 99), (-1, 100)),
        ("msg_timeout", "msg timeout", (0, 1000, 900000), (-1, 1, 999, 900001)),
    ],
)
def test_bounds(field: str, what: str, good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    for number in good:
        identify(**{field: number})
    for number in bad:
        body = json.dumps({field: number}).encode()
        assert refusal(body) == f"E_BAD_BODY IDENTIFY {what} ({number}) is invalid".encode()


def test_which_mistake_is_reported() -> None:
    body = b'{"output_buffer_size":1,"output_buffer_timeout":1,"sample_rate":200}'
    assert b"output buffer timeout (1)" in refusal(body)


def test_a_second_one_keeps_what_it_does_not_name() -> None:
    first = identify(
        msg_timeout=2000, heartbeat_interval=1000, output_buffer_size=-1, sample_rate=7
    )
    second = identify(first, hostname="h")
    assert second.wait_ns(CONFIG) == 2 * SECOND
    assert second.heartbeat_interval_ns == SECOND
    assert (second.output_buffer_size, second.flush_ns(CONFIG)) == (1, 0)
    assert (second.sample_rate, second.hostname) == (0, "h")


def test_the_response_is_in_nsqds_order() -> None:
    assert identify().response(CONFIG) == b"OK"
    assert identify(feature_negotiation=True, snappy=True, deflate=True).response(CONFIG) == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
        b'"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
        b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
        b'"output_buffer_timeout":250,"topology_region":"","topology_zone":""}'
    )


def test_a_body_is_decoded_up_to_a_limit() -> None:
    """Ten thousand keys take milliseconds, in which nobody else is served."""
    most = limits.NSQ_IDENTIFY_BODY_MAX
    assert Identity.read(b'{"client_id":"a"}'.ljust(most), CONFIG, BEFORE).client_id == "a"
    text = b"E_BAD_BODY IDENTIFY body too big %d > %d" % (most + 1, most)
    assert refusal(b'{"client_id":"a"}'.ljust(most + 1)) == text
