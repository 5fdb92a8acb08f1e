"""What is noted of commits: the files."""

from __future__ import annotations

import threading
from pathlib import Path

from broker.bulk.write.intents import VERSION, Intent, load_intents, save_intent

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
