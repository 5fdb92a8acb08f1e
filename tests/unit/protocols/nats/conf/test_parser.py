"""The configuration language: values, places, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker.protocols.nats import limits
from broker.protocols.nats.conf.parser import ConfError, Value, parse_file, parse_text

ENVIRONMENT = {"PORT": "4333", "SIZE": "2mb", "LIST": "[a, c ]", "BROKEN": "{"}

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("# nothing\n// at all", {}),
    ("a: 1", {"a": 1}),
    ("a = 1; b 2\nc:3,d=4", {"a": 1, "b": 2, "c": 3, "d": 4}),
    ("a\n: 1", {"a": 1}),
    ("'a b': 1\n\"c d\" = 2", {"a b": 1, "c d": 2}),
    ("a: 1\na: 2", {"a": 2}),
    ('{"port": 4222, "tls": {"verify": true}}', {"port": 4222, "tls": {"verify": True}}),
    ("a { b: c }", {"a": {"b": "c"}}),
    ("a: {\n b = c # why\n // more\n d {e f}\n}\n", {"a": {"b": "c", "d": {"e": "f"}}}),
    ("a: x#y\nb: x//y", {"a": "x#y", "b": "x//y"}),
    ("a: foo.>, b: *.x", {"a": "foo.>", "b": "*.x"}),
    (r'a: "\x41\t\n\r\"\\"', {"a": 'A\t\n\r"\\'}),
    (r"a: 'raw \n'", {"a": r"raw \n"}),
    ('a: "\\xc3\\xa9"', {"a": "é"}),
    ("a: (\n one\n two\n)\nb: 1", {"a": "\n one\n two\n", "b": 1}),
    ("a: true\nb: 1", {"a": True, "b": 1}),
    (
        'a: YES, b: on, c: No, d: off, e: "on"',
        {"a": True, "b": True, "c": False, "d": False, "e": "on"},
    ),
    ("a: -3, b: 1.5, c: -0.25", {"a": -3, "b": 1.5, "c": -0.25}),
    (
        "a: 1k, b: 2K, c: 1kb, d: 1KiB, e: 1ki",
        {"a": 1000, "b": 2000, "c": 1024, "d": 1024, "e": 1024},
    ),
    ("a: 1m, b: 1mb, c: 2g, d: 1gib", {"a": 10**6, "b": 2**20, "c": 2 * 10**9, "d": 2**30}),
    ("a: 1t, b: 1p, c: 1e, d: 1eb", {"a": 10**12, "b": 10**15, "c": 10**18, "d": 2**60}),
    ("a: 10s, b: 2ms, c: 1h30m", {"a": "10s", "b": "2ms", "c": "1h30m"}),
    ("a: 127.0.0.1:4222, b: 10.0.0.1", {"a": "127.0.0.1:4222", "b": "10.0.0.1"}),
    ("a: 2016-05-04T18:53:41Z", {"a": datetime(2016, 5, 4, 18, 53, 41, tzinfo=UTC)}),
    ("a: [1 , 2 ]", {"a": [1, 2]}),
    ("a: [\n 1\n 2 # two\n x, {y: z}\n]", {"a": [1, 2, "x", {"y": "z"}]}),
    ("a: [b,c,]", {"a": ["b", "c"]}),
    ("a: []", {"a": []}),
    ("p: 1, a: $p", {"p": 1, "a": 1}),
    ("p: 1, a: {q: 2, b: {c: $p, d: $q}}", {"p": 1, "a": {"q": 2, "b": {"c": 1, "d": 2}}}),
    ("p: 1, a: {p: 2, b: $p}", {"p": 1, "a": {"p": 2, "b": 2}}),
    ("a: '$p', b: \"$p\"", {"a": "$p", "b": "$p"}),
    ("a: $PORT, b: $SIZE, c: $LIST", {"a": 4333, "b": 2**21, "c": ["a", "c"]}),
    ("a: $2a$10$abc.def", {"a": "$2a$10$abc.def"}),
    ("a: ;b: 1", {"a": "", "b": 1}),
    # Units and a closing bracket do not go together: it stays a string.
    ("a: [2mb]", {"a": ["2mb"]}),
]

BAD = [
    ("a", 1, 1, "'a' has no value"),
    ("\n  a:\nb: 1", 2, 3, "'a' has no value"),
    ("a: {b: }", 1, 5, "'b' has no value"),
    (": 1", 1, 1, "key expected, found ':'"),
    ("a: 1 b: 2", 1, 6, "new line, ',' or ';' expected after a value, found 'b'"),
    ("a {b: 1 c: 2}", 1, 9, "new line, ',' or ';' expected after a value, found 'c'"),
    ("a: [1 2]", 1, 7, "',' or ']' expected in an array, found '2'"),
    ("a: [1,2]", 1, 4, "array lacks its closing ]"),
    ("a: [,]", 1, 5, "value or ']' expected, found ','"),
    ("a: [b", 1, 4, "array lacks its closing ]"),
    ("a {b: 1", 1, 3, "map lacks its closing }"),
    ("a {]", 1, 4, "key or '}' expected, found ']'"),
    ("{a: 1", 1, 6, "ends before '}'"),
    ('a: "b', 1, 4, 'string lacks its closing "'),
    ("a: 'b", 1, 4, "string lacks its closing '"),
    ("'a: b", 1, 1, "key lacks its closing '"),
    (r'a: "\q"', 1, 5, r"after \ only xHH, t, n, r, \" and \\ are allowed"),
    (r'a: "\x4"', 1, 5, r"after \ only xHH, t, n, r, \" and \\ are allowed"),
    ("a: (\nb)\n", 1, 4, "block lacks its closing ) on a line of its own"),
    ("a: .5", 1, 4, "a number begins with a digit"),
    ("a: -x", 1, 4, "a number begins with a digit"),
    ("a: 1.x", 1, 4, "is not a number, an address or a date"),
    ("a: 12-3", 1, 4, "is not a number, an address or a date"),
    ("a: 1kbi", 1, 4, "kbi is not a unit"),
    ("a: 9223372036854775808", 1, 4, "9223372036854775808 is out of range"),
    ("a: 9eb", 1, 4, "9eb is out of range"),
    ("a: 2016-13-04T18:53:41Z", 1, 4, "time data '2016-13-04T18:53:41Z' does not match"),
    ("a: $nowhere", 1, 4, "variable nowhere is neither set above nor in the environment"),
    ("a {p: 1}\nb: $p", 2, 4, "variable p is neither set above nor in the environment"),
    ("a: $BROKEN", 1, 4, "variable BROKEN of the environment: map lacks its closing }"),
    ("include [", 1, 9, "file name expected after include, found '['"),
    ("include \n", 1, 9, "file name expected after include, found '\\n'"),
]


@pytest.mark.parametrize(("text", "values"), GOOD, ids=range(len(GOOD)))
def test_values(text: str, values: dict[str, Any]) -> None:
    assert Value(parse_text(text, ENVIRONMENT), "", 1, 1).plain() == values


@pytest.mark.parametrize(("text", "line", "column", "reason"), BAD)
def test_mistakes(text: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(ConfError) as caught:
        parse_text(text, ENVIRONMENT, "x.conf")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert caught.value.reason.startswith(reason)
    assert str(caught.value).startswith(f"x.conf:{line}:{column}: ")


def test_places() -> None:
    values = parse_text("a: 1\n  b {\n\tc: [x\n y]}", ENVIRONMENT, "f")
    b = values["b"]
    c = b.it["c"]
    assert (b.line, b.column) == (2, 3)
    assert (c.file, c.line, c.column) == ("f", 3, 2)
    assert [(item.line, item.column) for item in c.it] == [(3, 6), (4, 2)]
    assert str(c.error("is wrong")) == "f:3:2: is wrong"


def test_what_a_variable_stands_for_is_known() -> None:
    values = parse_text("p: 1, q: 2, a: $p", ENVIRONMENT)
    assert values["p"].used
    assert not values["q"].used


def test_include(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "main.conf").write_text(
        "a: 1\ninclude sub/one.conf\nm {include 'sub/two.conf'\n z: 1}\nb: $one\n"
    )
    (tmp_path / "sub" / "one.conf").write_text("include two.conf\none: 7")
    (tmp_path / "sub" / "two.conf").write_text("two: 2\na: 3")
    values = parse_file(tmp_path / "main.conf", {})
    assert Value(values, "", 1, 1).plain() == {
        "a": 3,
        "one": 7,
        "two": 2,
        "m": {"two": 2, "a": 3, "z": 1},
        "b": 7,
    }
    assert values["two"].file == str(tmp_path / "sub" / "two.conf")


def test_include_of_itself_and_of_nothing(tmp_path: Path) -> None:
    main = tmp_path / "main.conf"
    main.write_text("a: 1\ninclude other.conf")
    with pytest.raises(
        ConfError, match=r"main\.conf:2:9: other\.conf cannot be read: No such file"
    ):
        parse_file(main, {})
    (tmp_path / "other.conf").write_text("include main.conf")
    with pytest.raises(ConfError, match=r"other\.conf:1:9: main\.conf includes itself"):
        parse_file(main, {})


def test_depth_is_bounded() -> None:
    deep = limits.CONF_DEPTH_MAX
    parse_text("a: " + "[" * deep + "]" * deep, {})
    for opening in "[", "{b:":
        with pytest.raises(ConfError, match="too many values inside each other"):
            parse_text("a: " + opening * 100_000, {})
