"""The corpus of configurations: what they make, how they are refused, what the original says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.conf_corpus import ENVIRONMENT, Case, Original, cases, changed, make_files
from support.servers.originals import nats_server

from broker.protocols.nats.conf.reader import (
    ConfError,
    ConfErrors,
    ConfNote,
    read_file,
    read_text,
)
from broker.protocols.nats.settings import Settings

GOOD, BAD = list(cases("good")), list(cases("bad"))
ORIGINAL = nats_server()
VERDICTS = ("", "starts not", "accepts, ", "varies, ", "refuses, ")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conf")
    make_files(folder)
    return folder


@pytest.fixture(autouse=True)
def at_the_files(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked for where the server runs."""
    monkeypatch.chdir(files)


def title(case: Case) -> str:
    return case.title.replace(" ", "_")


@pytest.mark.parametrize("case", GOOD, ids=title)
def test_good(case: Case) -> None:
    settings, warnings = read_text(case.text, ENVIRONMENT, "x.conf")
    made = [("!!" if isinstance(warning, ConfNote) else "??", str(warning)) for warning in warnings]
    *said, (_, expected) = case.expected
    assert made == [(mark, f"x.conf:{text}") for mark, text in said]
    assert changed(settings) == json.loads(expected)


@pytest.mark.parametrize("case", BAD, ids=title)
def test_bad(case: Case) -> None:
    with pytest.raises(ConfErrors) as caught:
        read_text(case.text, ENVIRONMENT, "x.conf")
    assert str(caught.value).splitlines() == [f"x.conf:{text}" for _, text in case.expected]
    assert [str(error) for error in caught.value.errors] == str(caught.value).splitlines()


def test_the_corpus_says_something_about_every_case() -> None:
    assert len({case.title for case in GOOD + BAD}) == len(GOOD + BAD)
    assert all(case.expected[-1][0] == "=>" for case in GOOD)
    assert all({mark for mark, _ in case.expected} == {">>"} for case in BAD)
    assert all(case.original.startswith(VERDICTS[1:]) for case in GOOD + BAD if case.original)


# --- the same verdicts as the original's


@pytest.fixture(scope="session")
def original(files: Path) -> Original:
    if ORIGINAL is None:
        pytest.skip("there is no nats-server")
    return Original(ORIGINAL, files)


@pytest.mark.parametrize("case", GOOD, ids=title)
def test_the_original_accepts_it_too(case: Case, original: Original) -> None:
    accepts, output = original.checks(case.text)
    warned = any(mark == "??" for mark, _ in case.expected)
    assert accepts == (not case.original and not warned), output


@pytest.mark.parametrize("case", BAD, ids=title)
def test_the_original_refuses_it_too(case: Case, original: Original) -> None:
    if case.original.startswith("varies"):
        return
    accepts, output = original.checks(case.text)
    assert accepts == bool(case.original), output
    if case.original == "starts not":
        starts, output = original.starts(case.text)
        assert not starts, output


# --- files


def test_files_and_what_they_include(tmp_path: Path) -> None:
    main, other = tmp_path / "main.conf", tmp_path / "other.conf"
    main.write_text("include other.conf\nport: 4333\n")
    other.write_text("debug: true\n")
    settings, warnings = read_file(main, {})
    assert (settings, warnings) == (Settings(listen=("0.0.0.0", 4333), debug=True), [])

    main.write_text("prot: 1\ninclude other.conf\nport: x\n")
    other.write_text("\ndbug: true\n")
    with pytest.raises(ConfErrors) as caught:
        read_file(main, {})
    assert str(caught.value).splitlines() == [
        f'{main}:1:1: unknown field "prot"',
        f"{main}:3:1: port: expected a number, got a string",
        f'{other}:2:1: unknown field "dbug"',
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfErrors, match="cannot be read: No such file or directory"):
        read_file(tmp_path / "missing.conf", {})


def test_a_folder_of_tokens_need_not_be_there_and_is_not_made(files: Path) -> None:
    settings, _ = read_text(
        next(case for case in GOOD if case.title == "operator: a token, a folder").text, {}
    )
    assert settings.resolver is not None
    assert not (files / settings.resolver.directory / "x").exists()


def test_a_file_that_holds_no_certificate() -> None:
    """In whichever words OpenSSL says it."""
    with pytest.raises(ConfErrors, match=r"^x\.conf:1:7: tls: certificate key\.pem, key "):
        read_text("tls { cert_file: key.pem, key_file: key.pem }", {}, "x.conf")


SECRETS = (
    "authorization { user: a, password: hush, token: hush, users: [ {user: b, password: hush} ] }"
)


def test_secrets_are_in_no_message() -> None:
    text = SECRETS + '\nleafnodes { remotes: [ {url: "nats://a:hush@b:c", seed: hush} ] }\n'
    with pytest.raises(ConfErrors) as caught:
        read_text(text, {})
    assert len(caught.value.errors) > 3
    assert "hush" not in str(caught.value)


def test_secrets_are_in_no_repr() -> None:
    text = """authorization { users: [ {user: b, password: hush} ] }
    websocket { port: -1, no_tls: true }
    accounts { A { users: [ {user: c, password: hush} ] } }
    leafnodes {
      authorization { user: d, password: hush }
      remotes: [ {url: "nats://a:hush@b:7422"} ]
    }
    """
    settings, _ = read_text(text, {})
    assert "hush" not in repr(settings)
    assert "hush" not in repr(read_text("authorization { token: hush }", {})[0])


# --- anything at all

KEYS = sorted({word for case in GOOD + BAD for word in case.text.split() if word.isidentifier()})
SIGNS = ["{", "}", "[", "]", "(", ")", ":", "=", ",", ";", "\n", "#", "//", ">", "include "]
VALUES = ["$x", '"a"', "5", "-1", "2m", "10s", "true", "a..b"]
TEXTS = st.lists(st.sampled_from(KEYS + SIGNS + VALUES)).map(" ".join)


def altered() -> Iterator[st.SearchStrategy[str]]:
    """Corpus with a piece cut out or doubled."""
    text = st.sampled_from([case.text for case in GOOD + BAD])
    place = st.integers(0, 400)
    yield st.builds(lambda t, a, b: t[:a] + t[a + b :], text, place, st.integers(1, 40))
    yield st.builds(lambda t, a, b: t[:a] + t[a : a + b] + t[a:], text, place, st.integers(1, 40))
    yield st.builds(lambda t, a, w: t[:a] + w + t[a:], text, place, st.sampled_from(SIGNS + VALUES))
    yield st.builds(lambda t, u: t + "\n" + u, text, text)


def mistakes_in(text: str) -> list[ConfError]:
    """Nothing else is ever raised."""
    try:
        read_text(text, ENVIRONMENT, "x.conf")
    except ConfErrors as caught:
        return caught.errors
    return []


MANY = "1" * 5000


@pytest.mark.parametrize(
    "text",
    [
        f"port: {MANY}",
        f"port: -{MANY}k",
        f"authorization {{ timeout: {MANY}.5 }}",
        f"authorization {{ timeout: {MANY[:300]}.5 }}",
        f'ping_interval: "{MANY}s"',
        f'leafnodes {{ min_version: "{MANY}.1.1" }}',
        f'mappings {{ "a.*": "b.{{{{partition({MANY},1)}}}}" }}',
        f'mappings {{ a: {{dest: b, weight: "{MANY}"}} }}',
        f'listen: "a:{MANY}"',
        'include "a\0b"',
        'operator: "a\0b"',
        'tls { cert_file: "a\0", key_file: "b\0" }',
        'tls { cert_file: cert.pem, key_file: key.pem, ca_file: "c\0" }',
        'resolver { type: full, dir: "\0" }',
        'leafnodes { remotes: [ {url: "nats://[::1"} ] }',
        'leafnodes { remotes: [ {url: "nats://a:99999"} ] }',
        "resolver: URL(http://[a)",
        f'operator: "{MANY}"',
        f'tls {{ cert_file: "{MANY}", key_file: b }}',
    ],
)
def test_what_is_too_much_or_cannot_be_is_refused(text: str) -> None:
    assert mistakes_in(text)


def test_what_only_looks_like_a_wildcards_number_is_taken_as_it_is() -> None:
    assert mistakes_in(f'mappings {{ "a.*": "b.${MANY}" }}') == []


@given(st.one_of(st.text(), TEXTS, *altered()))
def test_whatever_it_says_it_is_read_or_refused(text: str) -> None:
    assert all(error.line >= 1 and error.column >= 1 for error in mistakes_in(text))


@pytest.mark.parametrize("value", ["5", "-1", "1.5", "true", '"x"', '""', "[]", "[ x ]", "[ {} ]",
                                   "{}", "{ x: y }", "2016-05-04T18:53:41Z"])  # fmt: skip
@pytest.mark.parametrize("form", [
    "%s",
    "authorization { %s }",
    "authorization { auth_callout { %s } }",
    "authorization { users: [ { %s } ] }",
    "authorization { users: [ {user: a, permissions { %s } } ] }",
    "accounts { A { %s } }",
    "accounts { A { exports: [ { %s } ] } }",
    "accounts { A { imports: [ { %s } ] } }",
    "mappings { a: [ { %s } ] }",
    "tls { %s }",
    "websocket { %s }",
    "leafnodes { %s }",
    "leafnodes { remotes: [ { %s } ] }",
    "resolver { %s }",
    "cluster { %s }",
    "jetstream { %s }",
])  # fmt: skip
def test_any_key_with_any_value(form: str, value: str) -> None:
    for key in KEYS:
        mistakes_in(form % f"{key}: {value}")
