"""Very many of anything in NATS Streaming do not hold up the others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.services import streaming_of
from support.stan import wire
from support.stan.client import StanClient
from support.stan.live import TEXT, LiveBroker

from broker.base.units import SECOND
from broker.engine.bulk.ranges import TimeSearch
from broker.protocols.stan import limits, subscriptions

pytestmark = pytest.mark.only_ours

MOST = 10


class Slow(TimeSearch):
    """On a disk that does not answer yet."""

    go_on = threading.Event()

    def find(self, moment: int) -> int:
        self.go_on.wait()
        return super().find(moment)


def test_no_more_than_so_many_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STAN_SEARCHES_MAX", MOST)
    monkeypatch.setattr(subscriptions, "TimeSearch", Slow)
    live = LiveBroker(tmp_path, TEXT.partition("hb_interval")[0])
    with StanClient(live) as stan:
        stan.fill("c", 3)
        fields = {"subject": "c", "start": wire.DELTA, "start_delta": 10**12}
        fields |= {"client_id": stan.client_id, "max_in_flight": 9, "ack_wait": 30}
        answers, inboxes = [], []
        for _ in range(2 * MOST):
            inboxes.append(stan.inbox())
            answers.append(stan.inbox())
            body = wire.encode(wire.SUBSCRIBE, inbox=inboxes[-1], **fields)
            stan.pub(stan.paths["sub_requests"], body, answers[-1])
        refused = [wire.decode(wire.SUBSCRIBED, stan.take(each)) for each in answers[MOST:]]
        assert {each["error"] for each in refused} == {
            "stan: too many subscriptions wait for their start by time"
        }
        Slow.go_on.set()
        for answer, inbox in zip(answers[:MOST], inboxes, strict=False):
            assert wire.decode(wire.SUBSCRIBED, stan.take(answer))["error"] == ""
            assert wire.decode(wire.MESSAGE, stan.take(inbox))["sequence"] == 1
    live.close()


def test_clients_that_came_back_together_are_not_asked_together(tmp_path: Path) -> None:
    text = TEXT.partition("hb_interval")[0]
    live = LiveBroker(tmp_path, text)
    with StanClient(live) as stan:
        for number in range(100):
            answer = stan.register(client_id=f"c{number}", conn_id=b"%d" % number)
            assert answer["error"] == ""
    live.close()
    live = LiveBroker(tmp_path, text)

    def due() -> list[float]:
        streaming = streaming_of(live.server)
        assert streaming is not None
        clients = streaming.clients.values()
        return sorted(client.timer.when() for client in clients)

    times = live.ask(due)
    live.close()
    assert len(times) == 101
    interval_s = limits.STAN_HEARTBEAT_INTERVAL / SECOND
    assert interval_s / 4 < times[-1] - times[0] <= interval_s / 2
    assert len({round(time, 2) for time in times}) > 50
