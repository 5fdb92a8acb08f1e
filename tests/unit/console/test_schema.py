"""Arguments and bodies are checked with the schemas of openapi.json."""

from __future__ import annotations

from typing import Any

import pytest

from broker.console.app import DOCUMENT
from broker.console.errors import RefusedError
from broker.console.schema import Operations, mismatch

OPERATIONS = Operations(DOCUMENT)


def test_paths() -> None:
    found, given = OPERATIONS.find("GET", "/v1/topics/a%2Fb/channels/c%20d")
    assert (found.name, given) == ("channel", {"topic": "a/b", "channel": "c d"})
    with pytest.raises(RefusedError, match="no such path"):
        OPERATIONS.find("GET", "/v1/topics/a/b")
    with pytest.raises(RefusedError, match="method"):
        OPERATIONS.find("PUT", "/v1/topics")


def test_arguments() -> None:
    topics, _ = OPERATIONS.find("GET", "/v1/topics")
    found = topics.arguments({"limit": "7", "non_empty": "true"})
    assert (found["limit"], found["non_empty"], found["sort"]) == (7, True, "name")
    assert found["filter"] is None


@pytest.mark.parametrize("text", ["", "-1", "201", "1.5", "٣", "9" * 30])
def test_invalid_numbers(text: str) -> None:
    topics, _ = OPERATIONS.find("GET", "/v1/topics")
    with pytest.raises(RefusedError, match="limit"):
        topics.arguments({"limit": text})


@pytest.mark.parametrize(
    ("value", "schema", "wrong"),
    [
        (1, {"type": "integer"}, ""),
        (True, {"type": "integer"}, "expected integer"),
        (True, {"type": ["string", "boolean"]}, ""),
        (None, {"type": ["string", "null"]}, ""),
        (0, {"type": "number", "exclusiveMinimum": 0}, "more than 0"),
        (9, {"type": "integer", "maximum": 8}, "at most 8"),
        (["a", 1], {"type": "array", "items": {"type": "string"}}, "expected string"),
        ({}, {"type": "object", "required": ["a"]}, "a is missing"),
        ({"b": 1}, {"type": "object", "additionalProperties": False}, "b is unknown"),
        ({"b": 1}, {"type": "object", "additionalProperties": {"type": "string"}}, "b: expected"),
    ],
)
def test_values(value: Any, schema: dict[str, Any], wrong: str) -> None:
    found = mismatch(value, schema)
    assert wrong in found
    assert bool(found) is bool(wrong)
