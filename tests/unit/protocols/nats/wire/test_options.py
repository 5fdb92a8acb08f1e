"""The JSON of INFO and CONNECT."""

from __future__ import annotations

import orjson
import pytest
from support.fakes.loop import FakeNats, FakePeer

from broker.protocols.nats import limits
from broker.protocols.nats.context import server_info
from broker.protocols.nats.wire.options import (
    ClientOptions,
    parse_object,
)


def merged(*raw: bytes) -> ClientOptions:
    options = ClientOptions()
    for one in raw:
        options.merge(one)
    return options


def test_what_is_on_by_itself() -> None:
    options = merged(b"{}")
    assert (options.verbose, options.pedantic, options.echo) == (True, True, True)
    assert (options.headers, options.no_responders, options.protocol) == (False, False, 0)


def test_names_in_any_case_and_unknown_ones() -> None:
    options = merged(b'{"VERBOSE":false,"Name":"n","PA\xc5\xbf\xc5\xbf":"p","new":[{"x":1}]}')
    assert options.verbose is False
    assert (options.name, options.password) == ("n", "p")


def test_later_ones_add_to_earlier_ones() -> None:
    options = merged(b'{"echo":false,"name":"n","protocol":1}', b'{"name":null,"protocol":0}')
    assert (options.echo, options.name, options.protocol) == (False, "n", 0)


@pytest.mark.parametrize("raw", [b"null", b" {} ", b'{"name":"\xff"}', b'{"name":"\\ud800"}'])
def test_accepted(raw: bytes) -> None:
    merged(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"{} x",
        b'{"verbose":1}',
        b'{"verbose":"true"}',
        b'{"name":1}',
        b'{"protocol":1.0}',
        b'{"protocol":"1"}',
        b'{"protocol":true}',
        b'{"protocol":99999999999999999999}',
        b'{"import":1}',
        b'{"a":NaN}',
        b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}x",
    ],
)
def test_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text goes nowhere
        merged(raw)


def test_deep_nesting_is_no_crash() -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_object(b'{"a":"\xff","b":' + b"[" * 100_000)


def test_info() -> None:
    info = server_info("N1", "", ("h", 5), headers=True, max_payload=9)
    assert (info["server_id"], info["server_name"]) == ("N1", "N1")
    assert (info["version"], info["max_payload"]) == (limits.NATS_VERSION, 9)
    assert (info["proto"], info["headers"], info["host"], info["port"]) == (1, True, "h", 5)


def test_info_of_one_client() -> None:
    nats = FakeNats()
    line = FakePeer(nats.listener).take()
    assert line.startswith(b"INFO {")
    assert line.endswith(b"} \r\n")
    info = orjson.loads(line[5:])
    assert (info["x"], info["client_id"]) == (1, 1)
    assert "nonce" not in info
