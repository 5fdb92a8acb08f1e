"""The table of errors: each row once, each text that of the original."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.protocols.jetstream import errors
from broker.protocols.jetstream.errors import ApiError, ErrorRow

ROWS = {name: row for name, row in vars(errors).items() if isinstance(row, ErrorRow)}
FOLDER = Path(errors.__file__).parent


def test_each_number_is_there_once() -> None:
    numbers = [row.err_code for row in ROWS.values()]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 190
    assert {row.code for row in ROWS.values()} == {400, 404, 409, 412, 429, 500, 503}


def test_what_only_a_cluster_sends_is_not_there() -> None:
    numbers = {row.err_code for row in ROWS.values()}
    assert numbers.isdisjoint({10004, 10005, 10008, 10009, 10040, 10075, 10123, 10163, 10202})


@pytest.mark.parametrize(
    ("row", "parts", "text"),
    [
        (errors.STREAM_NOT_FOUND, {}, "stream not found"),
        (errors.SEQUENCE_NOT_FOUND, {"seq": 7}, "sequence 7 not found"),
        (errors.STREAM_CONFIG, {"err": "{odd}"}, "{odd}"),
        (errors.INVALID_JSON, {"err": 'unknown field "a"'}, 'invalid JSON: unknown field "a"'),
        (errors.PRIORITY_GROUP_NAME, {}, errors.PRIORITY_GROUP_NAME.text),
    ],
)
def test_an_error_has_the_text_with_its_parts(
    row: ErrorRow, parts: dict[str, object], text: str
) -> None:
    problem = ApiError(row, **parts)
    assert (problem.text, problem.err_code, problem.code) == (text, row.err_code, row.code)
    assert str(problem) == text


def test_every_error_that_is_raised_is_a_row() -> None:
    used = set()
    for path in FOLDER.rglob("*.py*"):
        if path.suffix in {".py", ".pyx"} and path.name != "errors.py":
            used |= set(re.findall(r"\berrors\.([A-Z][A-Z0-9_]+)\b", path.read_text()))
    assert len(used) > 80
    assert used - set(ROWS) == set()
