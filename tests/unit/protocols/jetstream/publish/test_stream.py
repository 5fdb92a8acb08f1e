"""The publish path of a stream, as nats-server 2.15.2 answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from errno import EIO
from pathlib import Path

import pytest
from support.engine import SYNC, WRITE, Rig
from support.native.turns import Output
from support.streams import StreamCase as Case
from support.streams import ack, get

from broker.protocols.jetstream.structs import RePublish, StreamConfig, SubjectTransform
from broker.runtime import vfs


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with Rig(tmp_path / "logs", sync="always") as rig:
        yield Case(rig)


# --- answers


def test_a_message_is_stored_and_acknowledged(case: Case) -> None:
    stream = case.make()
    assert case.ask("s.a", b"one") == ack(1)
    assert case.ask("s.b", b"two", A="b") == ack(2)
    assert get(stream, seq=1) == ("s.a", 1, b"", b"one")
    assert get(stream, seq=2) == ("s.b", 2, b"NATS/1.0\r\nA: b\r\n\r\n", b"two")
    assert stream.stored == 2


def test_a_domain_stands_in_the_ack(case: Case) -> None:
    case.make(domain="hub")
    assert case.ask("s.a") == b'{"stream":"S","domain":"hub","seq":1}'


def test_the_name_of_the_stream_is_escaped(case: Case) -> None:
    case.make(name='a"<')
    assert case.ask("s.a") == b'{"stream":"a\\"\\u003c","seq":1}'


def test_a_publish_without_a_reply_is_stored(case: Case) -> None:
    stream = case.make()
    assert case.send("s.a", b"one") == 1
    case.rig.settle()
    assert get(stream, last_by_subj="s.a") == ("s.a", 1, b"", b"one")
    assert case.answers == []


def test_no_ack_means_silence(case: Case) -> None:
    stream = case.make(no_ack=True)
    case.send("s.a", b"one", "reply.1")
    case.send("s.a", b"two", "reply.2", Nats_Expected_Stream="T")
    case.rig.settle()
    assert case.answers == []
    assert (stream.stored, stream.refused) == (1, 1)


def test_many_acks_leave_in_parts(case: Case) -> None:
    """All in one turn: those publishers go on while the server makes the other acks."""
    case.make()
    case.ask("s.a")  # the names are on the disk then
    output = Output(case.rig.turn, case.rig.router, b"reply.*")
    for number in range(300):
        case.send("s.a", b"x", f"reply.many-{number}")
    case.rig.settle()
    assert len(case.answers) == 301
    assert [sent for _, sent in output.flushed] == [128, 128, 44]
    assert len({turn for turn, _ in output.flushed}) == 1


def test_subscribers_receive_what_is_refused(case: Case) -> None:
    case.make()
    case.hear("s.>")
    assert case.error("s.a", b"one", Nats_Expected_Stream="T")[0] == 10060
    assert [message.data for message in case.heard] == [b"one"]


def test_other_subjects_are_not_taken(case: Case) -> None:
    stream = case.make()
    assert case.send("t.a") == 0
    stream.close()
    assert case.send("s.a") == 0


def test_an_answer_of_the_server_is_not_stored(case: Case) -> None:
    stream = case.make(subjects=["s.>", "reply.>"])
    case.ask("s.a")
    assert stream.store.messages == 1


def test_the_ack_waits_for_the_disk(case: Case) -> None:
    case.make()
    case.send("s.a", b"one", "reply.1")
    case.rig.loop.run()
    assert case.answers == []
    case.rig.settle()
    assert case.answers == [("reply.1", ack(1))]


def test_messages_of_one_turn_are_answered_in_order(case: Case) -> None:
    case.make()
    for i in range(100):
        case.send("s.a", b"x", f"reply.{i}")
    case.rig.settle()
    assert case.answers == [(f"reply.{i}", ack(i + 1)) for i in range(100)]


# --- checks


def test_the_size_of_a_message_is_limited(case: Case) -> None:
    case.make(max_msg_size=40)
    assert case.ask("s.a", b"x" * 40) == ack(1)
    assert case.error("s.a", b"x" * 41) == (10054, "message size exceeds maximum allowed")
    assert case.error("s.a", b"x" * 20, A="1234567890")[0] == 10054


def test_the_size_of_headers_is_limited(case: Case) -> None:
    case.make()
    assert case.ask("s.a", A="x" * 60_000) == ack(1)
    assert case.error("s.a", A="x" * 65_600) == (
        10097, "header size exceeds maximum allowed of 64k",
    )  # fmt: skip


def test_a_sealed_stream_takes_nothing(case: Case) -> None:
    case.make(sealed=True)
    assert case.error("s.a") == (10109, "invalid operation on sealed stream")


def test_the_expected_stream(case: Case) -> None:
    case.make()
    assert case.ask("s.a", Nats_Expected_Stream="S") == ack(1)
    assert case.error("s.a", Nats_Expected_Stream="SX") == (
        10060, "expected stream does not match",
    )  # fmt: skip


def test_the_expected_sequence(case: Case) -> None:
    case.make()
    assert case.ask("s.a", Nats_Expected_Last_Sequence="0") == ack(1)
    assert case.error("s.a", Nats_Expected_Last_Sequence="0") == (
        10071, "wrong last sequence: 1",
    )  # fmt: skip
    assert case.error("s.a", Nats_Expected_Last_Sequence="x")[0] == 10071
    assert case.ask("s.a", Nats_Expected_Last_Sequence="") == ack(2)


def test_the_expected_sequence_of_a_subject(case: Case) -> None:
    case.make()
    assert case.ask("s.a", Nats_Expected_Last_Subject_Sequence="0") == ack(1)
    assert case.ask("s.b", Nats_Expected_Last_Subject_Sequence="0") == ack(2)
    assert case.error("s.a", Nats_Expected_Last_Subject_Sequence="2") == (
        10071, "wrong last sequence: 1",
    )  # fmt: skip
    assert case.error("s.a", Nats_Expected_Last_Subject_Sequence="junk")[0] == 10071
    assert case.ask("s.a", Nats_Expected_Last_Subject_Sequence="1") == ack(3)


def test_the_expected_sequence_of_another_subject(case: Case) -> None:
    case.make()
    for subject in ("s.a", "s.b"):
        case.ask(subject)
    for subject, last in (("s.b", 2), ("s.*", 2), ("s.a", 1), ("t.>", 0)):
        headers = {"Nats_Expected_Last_Subject_Sequence_Subject": subject}
        assert case.error("s.c", Nats_Expected_Last_Subject_Sequence="99", **headers) == (
            10071, f"wrong last sequence: {last}",
        )  # fmt: skip
    headers = {"Nats_Expected_Last_Subject_Sequence_Subject": "s.*"}
    assert case.ask("s.c", Nats_Expected_Last_Subject_Sequence="2", **headers) == ack(3)
    assert case.error("s.c", Nats_Expected_Last_Subject_Sequence_Subject="s.a") == (
        10193, "missing sequence for expected last sequence per subject",
    )  # fmt: skip


def test_of_two_with_the_same_expectation_in_one_turn_one_is_stored(case: Case) -> None:
    case.make()
    case.send("s.a", b"1", "reply.1", Nats_Expected_Last_Subject_Sequence="0")
    case.send("s.a", b"2", "reply.2", Nats_Expected_Last_Subject_Sequence="0")
    case.rig.settle()
    answers = dict(case.answers)
    assert answers["reply.1"] == ack(1)
    assert b"wrong last sequence: 1" in answers["reply.2"]


def test_the_expected_id_of_the_last_message(case: Case) -> None:
    case.make()
    assert case.error("s.a", Nats_Expected_Last_Msg_Id="m") == (10070, "wrong last msg ID: ")
    case.ask("s.a", Nats_Msg_Id="m" * 200)
    assert case.error("s.a", Nats_Expected_Last_Msg_Id="x") == (
        10070, "wrong last msg ID: " + "m" * 200,
    )  # fmt: skip
    assert case.ask("s.a", Nats_Expected_Last_Msg_Id="m" * 200) == ack(2)
    assert case.error("s.a", Nats_Expected_Last_Msg_Id="m" * 200) == (10070, "wrong last msg ID: ")


def test_the_id_of_the_last_message_is_known_after_a_restart(tmp_path: Path) -> None:
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        case.make()
        case.ask("s.a", Nats_Msg_Id="m")
        rig.close()
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        case.make()
        assert case.error("s.a", Nats_Expected_Last_Msg_Id="x") == (10070, "wrong last msg ID: m")
        assert case.ask("s.a", Nats_Expected_Last_Msg_Id="m") == ack(2)


# --- duplicates


def test_a_duplicate_is_not_stored(case: Case) -> None:
    stream = case.make()
    assert case.ask("s.a", Nats_Msg_Id="1") == ack(1)
    assert case.ask("s.b", Nats_Msg_Id="1") == b'{"stream":"S","seq":1,"duplicate": true}'
    assert case.ask("s.b", Nats_Msg_Id="2") == ack(2)
    assert (stream.stored, stream.duplicates) == (2, 1)


def test_expected_sequences_are_checked_before_duplicates(case: Case) -> None:
    case.make()
    headers = {"Nats_Msg_Id": "1", "Nats_Expected_Last_Sequence": "0"}
    assert case.ask("s.a", **headers) == ack(1)
    assert case.error("s.a", **headers) == (10071, "wrong last sequence: 1")


def test_a_duplicate_in_the_same_turn_is_answered_after_its_original(case: Case) -> None:
    case.make()
    case.send("s.a", b"", "reply.1", Nats_Msg_Id="1")
    case.send("s.a", b"", "reply.2", Nats_Msg_Id="1")
    case.rig.settle()
    assert case.answers == [
        ("reply.1", ack(1)), ("reply.2", b'{"stream":"S","seq":1,"duplicate": true}'),
    ]  # fmt: skip


@pytest.mark.parametrize("call", [WRITE, SYNC])
def test_a_duplicate_of_a_stored_message_does_not_fail_with_another_one(
    case: Case, call: int
) -> None:
    case.make()
    assert case.ask("s.a", Nats_Msg_Id="1") == ack(1)
    vfs.fail(call, EIO)
    assert case.error("s.a", Nats_Msg_Id="2")[0] == 10077
    assert case.ask("s.a", Nats_Msg_Id="1") == b'{"stream":"S","seq":1,"duplicate": true}'
    case.rig.advance(2)
    assert case.ask("s.a", Nats_Msg_Id="1") == b'{"stream":"S","seq":1,"duplicate": true}'
    assert json.loads(case.ask("s.a", Nats_Msg_Id="2"))["seq"] > 1


# --- rollups, limits, interest


def test_rollups(case: Case) -> None:
    stream = case.make(allow_rollup_hdrs=True)
    for subject in ("s.a", "s.a", "s.b"):
        case.ask(subject)
    assert case.error("s.a", Nats_Rollup="bogus") == (10111, 'rollup value invalid: "bogus"')
    assert case.ask("s.a", Nats_Rollup="SUB") == ack(4)
    assert [get(stream, seq=seq) is not None for seq in (1, 2, 3, 4)] == [False, False, True, True]
    assert case.ask("s.c", Nats_Rollup="all") == ack(5)
    assert stream.store.messages == 1


def test_a_rollup_of_a_subject_with_wildcards(case: Case) -> None:
    stream = case.make(allow_rollup_hdrs=True)
    for subject in ("s.a", "s.b.x", "s.a"):
        case.ask(subject)
    assert case.ask("s.*", Nats_Rollup="sub") == ack(4)
    assert case.ask("s.*", Nats_Rollup="sub") == ack(5)
    assert [get(stream, seq=seq) is not None for seq in range(1, 6)] == [
        *(False, True, False),
        *(False, True),
    ]


def test_many_rollups_before_one_is_written(case: Case) -> None:
    """What they have replaced already does not count again."""
    stream = case.make(allow_rollup_hdrs=True)
    for number in range(3):
        case.ask(f"s.{number}")
    for _ in range(1_200):
        case.send("s.*", Nats_Rollup="sub")
    case.rig.settle()
    assert (stream.store.messages, stream.store.last_seq) == (1, 1_203)


@pytest.mark.parametrize("subjects", [True, False])
def test_one_that_could_take_long_is_refused(case: Case, *, subjects: bool) -> None:
    """Of a stream with many subjects, or with many messages that match."""
    stream = case.make(allow_rollup_hdrs=True)
    for number in range(1_001):
        case.ask(f"s.{number}.a" if subjects else "s.1.a")
    refused = (10111, "rollup subject may match too much, purge by filter")
    assert case.error("s.*.a", Nats_Rollup="sub") == refused
    assert stream.store.messages == 1_001
    assert case.ask("s.1.a", Nats_Rollup="sub") == ack(1_002)


@pytest.mark.parametrize("more", [{}, {"allow_rollup_hdrs": True, "deny_purge": True}])
def test_rollups_need_a_permission(case: Case, more: dict[str, bool]) -> None:
    case.make(**more)
    assert case.error("s.a", Nats_Rollup="sub") == (10111, "rollup not permitted")


def test_ttls_need_a_permission(case: Case) -> None:
    case.make()
    assert case.error("s.a", Nats_TTL="junk") == (10165, "invalid per-message TTL")
    assert case.error("s.a", Nats_TTL="10") == (10166, "per-message TTL is disabled")
    assert case.error("s.a", Nats_Incr="1") == (10168, "message counters is disabled")


def test_a_full_stream_refuses_new_messages(case: Case) -> None:
    case.make({"max_msgs": 2, "max_bytes": 500, "discard_new": True})
    assert case.error("s.a", b"x" * 600) == (10077, "maximum bytes exceeded")
    assert [case.ask("s.a"), case.ask("s.a")] == [ack(1), ack(2)]
    assert case.error("s.a") == (10077, "maximum messages exceeded")


def test_a_full_subject_refuses_new_messages(case: Case) -> None:
    case.make({"max_msgs_per_subject": 1, "discard_new": True, "discard_new_per_subject": True})
    assert case.ask("s.a") == ack(1)
    assert case.error("s.a") == (10077, "maximum messages per subject exceeded")
    assert case.ask("s.b") == ack(2)


def test_an_account_without_room_refuses_new_messages(case: Case) -> None:
    stream = case.make(storage="file")
    asked: list[int] = []

    def has_room(size: int) -> bool:
        asked.append(size)
        return len(asked) < 2

    stream.has_room = has_room
    assert case.ask("s.a", b"12345") == ack(1)
    assert case.error("s.a", b"12345") == (10002, "resource limits exceeded for account")
    assert asked == [38, 38]
    assert stream.store.messages == 1


def test_without_a_consumer_nothing_is_stored_for_interest(case: Case) -> None:
    stream = case.make(retention="interest")
    assert case.ask("s.a") == ack(1)
    stream.add_consumer("c", object(), ["s.b", "s.c.*"])
    assert [case.ask(subject) for subject in ("s.a", "s.b", "s.c.d", "s.c")] == [
        ack(2), ack(3), ack(4), ack(5),
    ]  # fmt: skip
    assert stream.store.messages == 2
    stream.set_filters("c", ())
    assert case.ask("s.a") == ack(6)
    stream.remove_consumer("c")
    assert case.ask("s.b") == ack(7)
    assert stream.store.messages == 3
    assert stream.store.last_seq == 7


def test_what_interest_skips_is_a_duplicate_afterwards(case: Case) -> None:
    case.make(retention="interest")
    assert case.ask("s.a", Nats_Msg_Id="1") == ack(1)
    assert case.ask("s.a", Nats_Msg_Id="1") == b'{"stream":"S","seq":1,"duplicate": true}'


def test_interest_begins_and_ends_with_the_configuration(case: Case) -> None:
    stream = case.make()
    stream.add_consumer("c", object(), ["s.b"])
    stream.configure(StreamConfig(name="S", subjects=["s.>"], retention="interest"))
    case.ask("s.a")
    assert stream.store.messages == 0
    stream.configure(StreamConfig(name="S", subjects=["s.>"]))
    case.ask("s.a")
    assert stream.store.messages == 1


# --- subjects


def test_subjects_are_transformed_before_all_checks(case: Case) -> None:
    stream = case.make(subject_transform=SubjectTransform(src="s.*.x", dest="t.{{wildcard(1)}}"))
    assert case.ask("s.a.x") == ack(1)
    assert case.ask("s.b") == ack(2)
    assert case.error("s.a.x", Nats_Expected_Last_Subject_Sequence="0") == (
        10071, "wrong last sequence: 1",
    )  # fmt: skip
    assert get(stream, seq=1)[0] == "t.a"
    assert get(stream, seq=2)[0] == "s.b"


def test_other_subjects_of_a_new_configuration(case: Case) -> None:
    stream = case.make(subjects=["s.a", "s.b"])
    stream.configure(StreamConfig(name="S", subjects=["s.b", "s.c"]))
    assert [case.send(subject) for subject in ("s.a", "s.b", "s.c")] == [0, 1, 1]


def test_stored_messages_are_published_again(case: Case) -> None:
    case.make(republish=RePublish(src="s.>", dest="again.>"))
    case.hear("again.>")
    case.ask("s.a", b"one")
    case.ask("s.a", b"two", A="b")
    first, second = case.heard
    assert (first.subject, first.data) == (b"again.a", b"one")
    lines = first.headers.split(b"\r\n")
    assert lines[:4] == [
        b"NATS/1.0", b"Nats-Stream: S", b"Nats-Subject: s.a", b"Nats-Sequence: 1",
    ]  # fmt: skip
    assert lines[4].startswith(b"Nats-Time-Stamp: ")
    assert lines[5:] == [b"Nats-Last-Sequence: 0", b"", b""]
    assert second.headers.startswith(b"NATS/1.0\r\nA: b\r\nNats-Stream: S\r\n")
    assert second.headers.endswith(b"\r\nNats-Last-Sequence: 1\r\n\r\n")
    assert second.data == b"two"


def test_only_headers_are_published_again(case: Case) -> None:
    case.make(republish=RePublish(src="s.a", dest="again", headers_only=True))
    case.hear("again")
    case.ask("s.a", b"one")
    case.ask("s.b", b"two")
    (message,) = case.heard
    assert message.data == b""
    assert message.headers.endswith(b"\r\nNats-Last-Sequence: 0\r\nNats-Msg-Size: 3\r\n\r\n")


def test_a_message_is_published_again_only_when_it_is_stored(case: Case) -> None:
    case.make(republish=RePublish(dest="again.>"))
    case.hear("again.>")
    case.send("s.a")
    case.rig.loop.run()
    assert case.heard == []
    case.rig.settle()
    assert len(case.heard) == 1


def test_other_streams_store_what_is_published_again_but_not_for_ever(case: Case) -> None:
    one = case.make(republish=RePublish(src="s.>", dest="t.>"))
    two = case.make(name="T", subjects=["t.>"], republish=RePublish(src="t.>", dest="s.>"))
    case.ask("s.a")
    for _ in range(50):
        case.rig.settle()
    assert one.stored == 5
    assert two.stored == 4


def test_messages_of_topics_are_stored_once(case: Case) -> None:
    stream = case.make()
    topic = case.rig.log("s.a")
    case.rig.publish(topic, [b"from a topic"])
    assert get(stream, seq=1) == ("s.a", 1, b"", b"from a topic")
    assert case.ask("s.a", b"live") == ack(2)
    assert (stream.store.messages, topic.message_count) == (2, 2)


# --- failures


@pytest.mark.parametrize("call", [WRITE, SYNC])
def test_a_message_that_cannot_be_written_is_not_acknowledged(case: Case, call: int) -> None:
    stream = case.make(allow_rollup_hdrs=True)
    assert case.ask("s.a", Nats_Msg_Id="1") == ack(1)
    vfs.fail(call, 28)
    code, text = case.error("s.a", Nats_Msg_Id="2", Nats_Expected_Last_Sequence="1")
    assert (code, text) == (10077, "No space left on device")
    vfs.heal()
    case.rig.advance(3)
    assert (stream.store.messages, stream.store.last_seq) == (1, 1)
    assert case.error("s.b", Nats_Expected_Last_Msg_Id="x") == (10070, "wrong last msg ID: 1")
    headers = {"Nats_Msg_Id": "2", "Nats_Expected_Last_Subject_Sequence": "1"}
    # a seq that was synced in vain is not used again
    assert case.ask("s.a", **headers) == ack(2 if call == WRITE else 3)
