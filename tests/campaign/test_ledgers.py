"""The ledgers detect each violation."""

from __future__ import annotations

import pytest

from campaign.ledgers import CommitLedger, Finding, StreamLedger, TopicLedger, body_of

NOW = 1_000_000_000


def ledger(count: int = 3) -> TopicLedger:
    topic = TopicLedger("t")
    topic.answered(topic.take(count))
    return topic


def test_all_is_well() -> None:
    topic = ledger()
    channel = topic.channel("c")
    for number in range(3):
        assert channel.got(number + 1, body_of(number), 1, NOW) == number
        channel.finish_sent(number)
    channel.confirm([0, 1], {0: 1, 1: 1, 2: 1})
    assert channel.got(3, body_of(2), 2, NOW) == 2
    channel.expect_empty()
    topic.expect_stored(set())
    assert channel.finished == 2


def test_a_lost_message() -> None:
    topic = ledger()
    topic.expect_stored({0, 1, 2})
    with pytest.raises(Finding, match="1 acknowledged messages lost: 1"):
        topic.expect_stored({0, 2})
    channel = topic.channel("c")
    channel.got(1, body_of(0), 1, NOW)
    channel.finish_sent(0)
    topic.expect_stored({1, 2})
    with pytest.raises(Finding, match="2 acknowledged messages were never delivered: 1, 2"):
        channel.expect_empty()


def test_what_was_not_answered_may_be_lost() -> None:
    topic = TopicLedger("t")
    topic.take(2)
    topic.answered(topic.take(), refused=True)
    topic.expect_stored(set())
    topic.channel("c").expect_empty()


def test_a_finished_message_comes_back() -> None:
    channel = ledger().channel("c")
    channel.got(1, body_of(0), 1, NOW)
    channel.finish_sent(0)
    channel.got(1, body_of(0), 1, NOW)  # the FIN is not confirmed yet
    channel.confirm([0], {0: 1})
    with pytest.raises(Finding, match="delivered again"):
        channel.got(1, body_of(0), 2, NOW)


def test_attempts_go_back() -> None:
    channel = ledger().channel("c")
    channel.got(1, body_of(0), 3, NOW)
    channel.confirm([], {0: 3})
    with pytest.raises(Finding, match="attempts went from 3 to 3"):
        channel.got(1, body_of(0), 3, NOW)


def test_a_message_comes_before_its_time() -> None:
    topic = TopicLedger("t")
    topic.answered(topic.take(due_ns=NOW + 50_000_000))
    with pytest.raises(Finding, match="50 ms before its time"):
        topic.channel("c").got(1, body_of(0), 1, NOW)


@pytest.mark.parametrize(
    ("seq", "body", "what"),
    [
        (1, body_of(1), "seq 1 was message 0 and is message 1"),
        (2, body_of(0), "has seqs 1 and 2"),
        (2, body_of(9), "was never sent"),
        (2, b"1:damaged", "was never published"),
    ],
)
def test_a_seq_that_is_used_again(seq: int, body: bytes, what: str) -> None:
    topic = ledger()
    topic.seen(1, body_of(0))
    with pytest.raises(Finding, match=what):
        topic.seen(seq, body)


def test_a_commit_that_is_sent_again_after_its_sync_failed() -> None:
    """A consumer may have received and finished a message that the log then refused."""
    topic = TopicLedger("t")
    numbers = topic.take()
    channel = topic.channel("c")
    channel.got(1, body_of(0), 1, NOW)
    channel.finish_sent(0)
    channel.confirm([0], {0: 1})
    channel.got(2, body_of(0), 1, NOW)
    topic.answered(numbers)
    topic.seen(2, body_of(0))
    with pytest.raises(Finding, match="has seqs 2 and 3"):
        channel.got(3, body_of(0), 1, NOW)
    channel.confirm([], {0: 1})
    with pytest.raises(Finding, match="attempts went from"):
        channel.got(2, body_of(0), 1, NOW)


def test_an_acknowledged_message_of_a_stream_comes_back() -> None:
    stream = StreamLedger(ledger())
    message = {"sequence": 1, "data": body_of(0), "redelivered": False, "redelivery_count": 0}
    stream.got(message)
    stream.got(message)  # the ack of the first one is not confirmed yet
    stream.confirm([], {1: 0})
    with pytest.raises(Finding, match="redeliveries went from 0 to 0"):
        stream.got(message)
    stream.confirm([1], {})
    with pytest.raises(Finding, match="delivered again"):
        stream.got({**message, "redelivered": True, "redelivery_count": 1})


def test_commits() -> None:
    topics = [TopicLedger("a"), TopicLedger("b")]
    ledger = CommitLedger(topics)
    ledger.begin([2, 1])
    for topic in topics:
        topic.expect_stored(set())
    ledger.done()
    topics[0].expect_stored({0, 1})
    with pytest.raises(Finding, match="b: 1 acknowledged messages lost"):
        topics[1].expect_stored(set())
