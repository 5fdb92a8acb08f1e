"""Bodies of system requests; the texts are those of the original's answers."""

from __future__ import annotations

import pytest

from broker.protocols.nats.system import options as system_options
from broker.protocols.nats.system.go_json import BadBody, decode

CONNZ = system_options.PAGES["CONNZ"]


def options(body: bytes) -> dict[str, object]:
    """Those that are not at their defaults."""
    defaults = decode(b"", CONNZ)
    return {name: v for name, v in decode(body, CONNZ).items() if v != defaults[name]}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", {}),
        (b"null", {}),
        (b" {} ", {}),
        (b'{"what": [1, {"x": null}]}', {}),
        (b'{"LIMIT": 1, "Subscriptions": true}', {"limit": 1, "subscriptions": True}),
        (b'{"limit": 1, "limit": null, "sort": "idle"}', {"limit": 1, "sort": "idle"}),
        (b'{"limit": -1, "state": 99}', {"limit": -1, "state": 99}),
        (b'{"cid": 18446744073709551615}', {"cid": 2**64 - 1}),
        (
            b'{"tags": ["a", null, "b"], "server_name": "n"}',
            {"tags": ("a", "", "b"), "server_name": "n"},
        ),
        (b'{"acc": "\xff\\ud800"}', {"acc": "��"}),
    ],
)
def test_what_is_read(body: bytes, found: dict[str, object]) -> None:
    assert options(body) == found


FIELD = "json: cannot unmarshal {} into Go struct field ConnzEventOptions.{} of type {}"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "unexpected end of JSON input"),
        (b" ", "unexpected end of JSON input"),
        (b'"a', "unexpected end of JSON input"),
        (b"-", "invalid character ' ' in numeric literal"),
        (b"nul", "invalid character ' ' in literal null (expecting 'l')"),
        (b'"\\', "invalid character ' ' in string escape code"),
        (b"{} x", "invalid character 'x' after top-level value"),
        (b"\xff", "invalid character 'ÿ' looking for beginning of value"),
        (b"'", "invalid character '\\'' looking for beginning of value"),
        (b'{"a":t}', "invalid character '}' in literal true (expecting 'r')"),
        (b'{"a" 1}', "invalid character '1' after object key"),
        (b'{"a":01}', "invalid character '1' after object key:value pair"),
        (b"{a}", "invalid character 'a' looking for beginning of object key string"),
        (b'{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        (b"[1 2]", "invalid character '2' after array element"),
        (b"[1,]", "invalid character ']' looking for beginning of value"),
        (b"[1.x]", "invalid character 'x' after decimal point in numeric literal"),
        (b"[1e+x]", "invalid character 'x' in exponent of numeric literal"),
        (b"[-x]", "invalid character 'x' in numeric literal"),
        (b'["\n"]', "invalid character '\\n' in string literal"),
        (b'["\\x"]', "invalid character 'x' in string escape code"),
        (b'["\\u00g0"]', "invalid character 'g' in \\u hexadecimal character escape"),
        (b"NaN", "invalid character 'N' looking for beginning of value"),
        (b"[" * 100_000, "exceeded max depth"),
        (b"[]", "json: cannot unmarshal array into Go value of type server.ConnzEventOptions"),
        (b'"x"', "json: cannot unmarshal string into Go value of type server.ConnzEventOptions"),
        (b'{"server_name":1}', FIELD.format("number", "EventFilterOptions.server_name", "string")),
        (b'{"tags":"x"}', FIELD.format("string", "EventFilterOptions.tags", "[]string")),
        (b'{"limit":"x"}', FIELD.format("string", "ConnzOptions.limit", "int")),
        (b'{"limit":1.5}', FIELD.format("number 1.5", "ConnzOptions.limit", "int")),
        (b'{"cid":-1}', FIELD.format("number -1", "ConnzOptions.cid", "uint64")),
        (b'{"auth":1}', FIELD.format("number", "ConnzOptions.auth", "bool")),
        (b'{"sort":{}}', FIELD.format("object", "ConnzOptions.sort", "server.SortOpt")),
        (b'{"state":true}', FIELD.format("bool", "ConnzOptions.state", "server.ConnState")),
        (
            b'{"offset":99999999999999999999}',
            FIELD.format("number 99999999999999999999", "ConnzOptions.offset", "int"),
        ),
    ],
)
def test_what_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(BadBody) as refused:
        decode(body, CONNZ)
    assert str(refused.value) == text
