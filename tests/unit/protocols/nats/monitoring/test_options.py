"""What can be asked of a monitoring page, as a query and as JSON."""

from __future__ import annotations

import pytest

from broker.protocols.nats.monitoring.options import (
    ANY,
    CLOSED,
    OPEN,
    ConnzOptions,
    HealthzOptions,
    JszOptions,
    LeafzOptions,
    PageError,
    Query,
    SubszOptions,
)

LONG = "9" * 5_000


def test_nothing_asked() -> None:
    assert ConnzOptions.from_query(Query({})) == ConnzOptions() == ConnzOptions.from_json({})


def test_a_query() -> None:
    asked = {
        "sort": "subs",
        "auth": "T",
        "subs": "Detail",
        "offset": "+5",
        "limit": "-1",
        "cid": "18446744073709551615",
        "state": "Any",
        "user": "u",
        "acc": "A",
        "filter_subject": "a.>",
    }
    assert ConnzOptions.from_query(Query(asked)) == ConnzOptions(
        sort="subs",
        auth=True,
        subscriptions_detail=True,
        offset=5,
        limit=-1,
        cid=2**64 - 1,
        state=ANY,
        user="u",
        acc="A",
        filter_subject="a.>",
    )


@pytest.mark.parametrize(
    ("word", "state"), [("open", OPEN), ("", OPEN), ("CLOSED", CLOSED), ("all", ANY), ("any", ANY)]
)
def test_states(word: str, state: int) -> None:
    assert Query({"state": word}).state() == state


@pytest.mark.parametrize(
    ("query", "name", "text"),
    [
        ({"auth": "yes"}, "boolean for 'auth'", 'ParseBool: parsing "yes": invalid syntax'),
        ({"limit": "x", "offset": "y"}, "int for 'offset'", 'Atoi: parsing "y": invalid syntax'),
        ({"limit": f"{2**63}"}, "int for 'limit'", f'Atoi: parsing "{2**63}": value out of range'),
        ({"limit": LONG}, "int for 'limit'", f'Atoi: parsing "{LONG}": value out of range'),
        # a digit, but not one of ours
        ({"limit": "\u0661"}, "int for 'limit'", 'Atoi: parsing "\u0661": invalid syntax'),
        ({"cid": "+1"}, "uint64 for 'cid'", 'ParseUint: parsing "+1": invalid syntax'),
        (
            {"cid": f"{2**64}"},
            "uint64 for 'cid'",
            f'ParseUint: parsing "{2**64}": value out of range',
        ),
    ],
)
def test_mistakes_are_reported_as_by_the_original(
    query: dict[str, str], name: str, text: str
) -> None:
    with pytest.raises(PageError) as refusal:
        ConnzOptions.from_query(Query(query))
    assert str(refusal.value) == f"Error decoding {name}: strconv.{text}"


@pytest.mark.parametrize(
    ("kind", "name"), [(JszOptions, "direct-consumers"), (HealthzOptions, "js-meta-only")]
)
def test_options_without_effect_are_checked(
    kind: type[JszOptions] | type[HealthzOptions], name: str
) -> None:
    kind.from_query(Query({name: "1"}))
    with pytest.raises(PageError, match=f"^Error decoding boolean for '{name}': "):
        kind.from_query(Query({name: "x"}))


def test_an_unknown_state() -> None:
    with pytest.raises(PageError, match=r"^Error decoding state for shut$"):
        Query({"state": "shut"}).state()


def test_the_smallest_and_largest_numbers() -> None:
    assert Query({"n": "-9223372036854775808"}).integer("n") == -(2**63)
    assert Query({"n": "0000000000000000000000000000000000009"}).integer("n") == 9


def test_json_has_names_of_its_own() -> None:
    given = {"account": "A", "subscriptions": True, "test": "a", "server_name": "not an option"}
    assert SubszOptions.from_json(given) == SubszOptions(account="A", subscriptions=True, test="a")
    assert SubszOptions.from_query(Query({"acc": "A", "subs": "1", "test": "a"})) == (
        SubszOptions.from_json(given)
    )
    assert LeafzOptions.from_json({"account": "A"}).account == "A"
    assert JszOptions.from_json({"leader_only": True}).leader_only
    assert HealthzOptions.from_json({"js-enabled-only": True, "details": True}) == HealthzOptions(
        js_enabled_only=True, details=True
    )
