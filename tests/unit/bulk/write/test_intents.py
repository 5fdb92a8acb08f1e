"""What is noted of commits: the files."""

from __future__ import annotations

import threading
from pathlib import Path

from broker.bulk.write.intents import VERSION, Intent, Plan, load_intents, save_intent, survey
from broker.engine.log.record import file_header

WRITERS = 4


def test_writers_that_commit_at_the_same_time_for_the_first_time(tmp_path: Path) -> None:
    """None of them has the folder yet."""
    for number in range(100):
        root = tmp_path / str(number)
        barrier = threading.Barrier(WRITERS)
        problems: list[OSError] = []

        def commit(
            writer: str,
            root: Path = root,
            barrier: threading.Barrier = barrier,
            problems: list[OSError] = problems,
        ) -> None:
            barrier.wait()
            try:
                save_intent(root, Intent(VERSION, writer, 1, "0" * 32, {}))
            except OSError as problem:
                problems.append(problem)

        threads = [threading.Thread(target=commit, args=(f"w{n}",)) for n in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        assert len(load_intents(root)[0]) == WRITERS


def test_files_have_their_names_before_a_commit_is_looked_for(tmp_path: Path) -> None:
    """A power cut may have undone the renames of a file that was used again: it goes by the name
    where the records of a commit are looked for."""
    folder = tmp_path / "logs" / "t"
    folder.mkdir(parents=True)
    header = file_header(b"\x11" * 16, 5, 1, used=True)
    (folder / f"{1:020d}.seg").write_bytes(header + bytes(40))
    plan = Plan("11" * 16, 1, [(0, "a", 56)])
    save_intent(tmp_path / "staged", Intent(VERSION, "w", 2, "00" * 12, {"t": plan}))
    survey(tmp_path / "staged", tmp_path / "logs")
    assert [path.name for path in folder.iterdir()] == [f"{5:020d}.seg"]
