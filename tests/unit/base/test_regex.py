"""Regular expressions: what Go's regexp says of them, and that none is slow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.regex import LENGTH_MAX, Pattern, PatternError

# Pattern, names in which it is found, names in which it is not: as Go 1.2x's regexp answers.
FOUND = [
    ("", ["", "a"], []),
    (".*", ["", "a.b#ephemeral"], []),
    ("^foo$", ["foo"], ["xfoo", "foo.bar", "FOO"]),
    ("foo", ["xfoo", "foo.bar"], ["fo"]),
    ("^$", [""], ["a"]),
    ("(a|b)*c", ["abc", "c"], ["ab"]),
    ("(?i)FOO", ["foo", "xFoO"], ["fo"]),
    ("(?i:F)oo", ["foo", "Foo"], ["fOO"]),
    ("^(?:a(?i)b)c$", ["aBc"], ["aBC", "ABc"]),
    ("^a{2,3}$", ["aa", "aaa"], ["a", "aaaa"]),
    ("^a{2,}$", ["aa", "aaaa"], ["a"]),
    ("a{,2}", ["a{,2}"], ["aa"]),
    ("a*?b", ["b"], ["a"]),
    ("[]a]", ["a"], ["b"]),
    ("^[^a-c]+$", ["xyz"], ["xbz"]),
    ("^[[:alpha:]]+$", ["ab"], ["a1"]),
    ("[[:^alpha:]]", ["a1"], ["ab"]),
    (r"^\d+$", ["12"], ["1a"]),
    (r"\bfoo\b", ["a.foo.b", "foo"], ["xfoo", "foo_"]),
    (r"\Aa\z", ["a"], ["ab"]),
    (r"\Qa.b\E+", ["a.b"], ["axb"]),
    ("(?P<x>a)", ["a"], ["b"]),
    ("(?<x>a)", ["a"], ["b"]),
    (r"^\p{Lu}$", ["A"], ["a"]),
    (r"\x61\x{62}\143", ["abc"], ["ab"]),
    (r"^(eu|us)\.orders\..+$", ["eu.orders.x"], ["eu.orders.", "asia.orders.x"]),
    ("(|a)+$", ["", "b"], []),
    ("$^", [""], ["a"]),
    ("é", [], ["e", ""]),
    # others than ASCII, which topics of NATS may have
    ("^.$", ["é", "日"], ["", "éé"]),
    (r"^[^a-z]\W\D$", ["é日ü"], ["aéé", "éeé"]),
    (r"^\w|[a-z]|[[:ascii:]]$", [], ["é"]),
    (r"^\pL$", ["é"], ["1"]),
    (r"\Q\C\E|\\C", [r"a\C"], ["C"]),
    ("^gr[öß]+e$", ["größe"], ["gre", "grüe"]),
]
REFUSED = [
    "a**", "*a", "a*+", "(a", "a)", "[a", "[z-a]", "[[:foo:]]", r"a\Z", "(?=a)", "(?!a)", "(?<=a)",
    r"(?P<x>a)\1", r"\8", r"\y", "a{1001}", "a{3,2}", r"[a-\d]", "(?z)", "\\", "|*", r"\C",
]  # fmt: skip


@pytest.mark.parametrize(("text", "found", "missed"), FOUND)
def test_as_go_matches(text: str, found: list[str], missed: list[str]) -> None:
    pattern = Pattern(text)
    assert [name for name in found + missed if pattern.search(name)] == found


@pytest.mark.parametrize("text", REFUSED)
def test_what_go_refuses(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


@pytest.mark.parametrize(
    "text", ["^(a+)+$", "^(a|a)*$", "(a*)*b", "^(a|aa)+$", "a*a*a*a*a*a*b", "(?:(?:a?){30}){30}b"]
)
def test_no_pattern_explodes(text: str) -> None:
    """With backtracking these take longer than anyone waits."""
    assert not Pattern(text).search("a" * 63 + "!" if "$" in text else "a" * 64)


def test_bounds() -> None:
    Pattern("a" * LENGTH_MAX)
    Pattern("(" * 99 + ")" * 99)
    for text in ("a" * (LENGTH_MAX + 1), "(a{1000}){5}", r"[^\pL]{1000}", "\ud800"):
        with pytest.raises(PatternError):
            Pattern(text)


_PARTS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "^", "$", r"\b", r"\w", r"\."]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@given(_PARTS, st.text("ab.-", max_size=8))
def test_as_python_where_the_two_agree(text: str, name: str) -> None:
    assert Pattern(text).search(name) == bool(re.search(text, name))


def test_repeats_of_nothing_are_bounded_too() -> None:
    with pytest.raises(PatternError, match="repetition size"):
        Pattern("(?:(?:(?:){1000}){1000}){1000}")


@pytest.mark.parametrize("text", [".*", "a", "a|ab", "(a|b)*", "(a?){20}b?", "^a$", "b$|a^", ""])
def test_the_whole_of_a_name(text: str) -> None:
    pattern = Pattern(text)
    for name in ("", "a", "b", "ab", "ba", "abb", "aé", "x" * 50):
        assert pattern.fullmatch(name) is (re.fullmatch(text, name) is not None)
