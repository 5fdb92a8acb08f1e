"""Files of configurations: names, durable changes, what is found after a crash."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.protocols.jetstream import files
from broker.protocols.jetstream.structs import ConsumerConfig, StreamConfig

CREATED = "2026-11-22T04:37:44Z"


def stored(name: str) -> files.StoredStream:
    return files.StoredStream(created=CREATED, config=StreamConfig(name=name, subjects=["a"]))


@pytest.mark.parametrize("name", ["S", "a b", "ä", "%", "x" * 255, "..", "a.b", "~", "=1", "A/B"])
def test_a_name_is_one_file_name(name: str) -> None:
    token = files.token_of(name)
    assert "/" not in token
    assert "." not in token
    assert len(token) <= 120
    assert token == files.token_of(name)


def test_different_names_have_different_tokens() -> None:
    names = ["a", "A", "a.b", "a%2Eb", "x" * 255, "x" * 254 + "y", "=", "%3D"]
    assert len({files.token_of(name) for name in names}) == len(names)


def test_a_stream_is_found_again(tmp_path: Path) -> None:
    for name in ("S", "x" * 255):
        files.save_stream(tmp_path / files.token_of(name), stored(name))
    found, gone = files.find_streams(tmp_path)
    assert gone == []
    assert {each.name: each.stored for each in found} == {
        name: stored(name) for name in ("S", "x" * 255)
    }


def test_a_stream_that_cannot_be_put_away_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def fail(path: Path) -> None:
        synced.append([each.name for each in path.iterdir()])
        raise OSError(errno.EIO, "Input/output error")

    folder = tmp_path / "S"
    folder.mkdir()
    monkeypatch.setattr(files, "sync_path", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.move_aside(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["S"]
    assert len(synced) == 2
    assert synced[1] == ["S"]


def test_a_stream_that_was_put_away_is_to_be_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "S"
    files.save_stream(folder, stored("S"))
    away = files.move_aside(folder)
    assert files.find_streams(tmp_path) == ([], [away])
    files.save_stream(folder, stored("S"))
    assert files.move_aside(folder) == away  # an earlier one is replaced
    files.remove(away)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "truncated"),
        (b'{"config":{"name":"S"', "truncated"),
        (b'{"created":"x","config":{"name":"S","later":1}}', "unknown field `later`"),
        (b'{"created":"x","config":{"name":"S","retention":"odd"}}', "Invalid enum value 'odd'"),
        (b"[]", "list indices"),
    ],
)
def test_a_damaged_file_is_reported(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "S").mkdir()
    (tmp_path / "S" / "stream.json").write_bytes(content)
    ((found,), _) = files.find_streams(tmp_path)
    assert found.name == "S"
    assert found.stored is None
    assert problem in found.problem


def test_a_wrong_checksum_is_reported(tmp_path: Path) -> None:
    files.save_stream(tmp_path / "S", stored("S"))
    path = tmp_path / "S" / "stream.json"
    path.write_bytes(path.read_bytes().replace(b'"limits"', b'"odd_st"'))
    ((found,), _) = files.find_streams(tmp_path)
    assert "checksum" in found.problem


def test_a_folder_without_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "S").mkdir()
    ((found,), _) = files.find_streams(tmp_path)
    assert found.problem


def test_consumers_are_found_until_they_are_removed(tmp_path: Path) -> None:
    for name in ("C", "y" * 255):
        files.save_consumer(
            tmp_path, files.StoredConsumer(created=CREATED, config=ConsumerConfig(name=name))
        )
    (tmp_path / "consumers" / "bad.json").write_bytes(b"{")
    (tmp_path / "consumers" / "half.json.new").write_bytes(b"{")
    found, problems = files.find_consumers(tmp_path)
    assert sorted(each.config.name for each in found) == ["C", "y" * 255]
    assert [name for name, _ in problems] == ["bad"]
    assert not (tmp_path / "consumers" / "half.json.new").exists()
    files.remove_consumer(tmp_path, "C")
    files.remove_consumer(tmp_path, "C")
    assert len(files.find_consumers(tmp_path)[0]) == 1


def test_nothing_is_found_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert files.find_streams(tmp_path / "no") == ([], [])
    assert files.find_consumers(tmp_path / "no") == ([], [])
    assert list(files.account_folders(tmp_path / "no")) == []
