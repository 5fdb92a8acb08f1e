"""The same raw JetStream requests are answered by Twinwire and by nats-server with the same JSON,
but for times, ids, versions and names of servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.filled_streams import NEWEST
from support.jetstream import Step, masked, run, step

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.skipif(not NEWEST.exists(), reason="no nats-server to compare with"),
]


def create(name: str, **keys: Any) -> Step:
    return step(f"STREAM.CREATE.{name}", {"name": name, **keys})


def update(name: str, **keys: Any) -> Step:
    return step(f"STREAM.UPDATE.{name}", {"name": name, **keys})


def info(name: str, **keys: Any) -> Step:
    return step(f"STREAM.INFO.{name}", keys) if keys else step(f"STREAM.INFO.{name}")


def get(name: str, **keys: Any) -> Step:
    return step(f"STREAM.MSG.GET.{name}", keys)


def delete(name: str, **keys: Any) -> Step:
    return step(f"STREAM.MSG.DELETE.{name}", keys)


def purge(name: str, **keys: Any) -> Step:
    return step(f"STREAM.PURGE.{name}", keys) if keys else step(f"STREAM.PURGE.{name}")


def consumer(stream: str, own: str, /, **keys: Any) -> Step:
    return step(f"CONSUMER.CREATE.{stream}.{own}", {"stream_name": stream, "config": keys})


def durable(stream: str, own: str, /, **keys: Any) -> Step:
    body = {"stream_name": stream, "config": {"durable_name": own, **keys}}
    return step(f"CONSUMER.DURABLE.CREATE.{stream}.{own}", body)


def publish(subject: str, body: bytes = b"x", **headers: str) -> Step:
    return step(f"={subject}", body, **headers)


SECOND = 1_000_000_000
BAD = {"src": "a..b", "dest": "b"}
UNKNOWN = {"src": "a.*", "dest": "b.{{bogus(1)}}"}
OVERLAP = [{"src": "a.*", "dest": "b.$1"}, {"src": "a.b", "dest": "c"}]
BOTH = {"filter_subject": "x", "subject_transforms": [{"src": "a", "dest": "b"}]}
OLD = "2020-01-01T00:00:00Z"

BODIES = [
    *(step("INFO"), step("INFO", b"junk"), step("NOPE"), step("STREAM.INFO")),
    *(step("STREAM.NAMES"), step("STREAM.LIST"), step("STREAM.NAMES", b"{bad")),
    *(step("STREAM.NAMES", b"junk"), step("STREAM.NAMES", {"offset": -5})),
    *(step("STREAM.NAMES", {"bogus": 1}), step("STREAM.LIST", {"bogus": 1})),
    *(step("STREAM.CREATE.S", b"{bad"), step("STREAM.CREATE.S", b"junk")),
    *(step("STREAM.CREATE.S"), step("STREAM.CREATE.S", b"  "), step("STREAM.CREATE.S", b"{}")),
    *(create("S", bogus=1), create("S", retention="bogus"), create("S", storage="bogus")),
    *(create("S", retention=5), create("S", max_msgs="x"), create("S", subjects="x")),
    *(create("S", subjects=[1]), create("S", mirror={"name": 5}), create("S", mirror={"bogus": 5})),
    *(step("STREAM.CREATE.S", b"[]"), step("STREAM.CREATE.S", b'"x"')),
    *(step("STREAM.CREATE.S", b"null"), step("STREAM.CREATE.S", {"name": "T"})),
    step("STREAM.INFO.S", Nats_Required_Api_Level="9"),
    step("STREAM.INFO.S", Nats_Required_Api_Level="x"),
    step("STREAM.CREATE.S", b"{bad", Nats_Required_Api_Level="9"),
    *(step("STREAM.CREATE.S", body) for body in (b'{"name":"S"', b'{"name":"S"} x', b"{}{}")),
    *(create("S", **{key: None}) for key in ("retention", "storage", "discard", "compression")),
    *(create("S", mirror=5, storage="x"), create("S", bogus=1, max_msgs="x")),
    create("S", mirror={"name": "A", "opt_start_time": ""}),
    create("S", subjects=["a"], metadata={"a": None}, discard="NEW", description="\ud800"),
    step("STREAM.DELETE.S"),
    *(step(f"{verb}.S", {"offset": "x"}) for verb in ("STREAM.INFO", "CONSUMER.LIST")),
    *(step(f"STREAM.{verb}", {"offset": "x"}) for verb in ("NAMES", "LIST")),
    *(step("STREAM.RESTORE.S", {"state": state}) for state in (5, {"messages": -1})),
    *(step("CONSUMER.UNPIN.S.C", body) for body in (b"{}x", {"group": 5})),
    step("STREAM.INFO.S", nats_required_api_level="9"),
    *(step(f"STREAM.{verb}.S", b"{ }") for verb in ("DELETE", "MSG.DELETE", "SNAPSHOT")),
    *(step(f"STREAM.{verb}.S", b" ") for verb in ("DELETE", "MSG.DELETE", "RESTORE")),
    *(step("STREAM.DELETE.S"), step("STREAM.DELETE.S", {"a": 1}), step("STREAM.DELETE.S", b"junk")),
    *(step("STREAM.PEER.REMOVE.S", {"peer": "x"}), step("STREAM.LEADER.STEPDOWN.S")),
    *(step("CONSUMER.LEADER.STEPDOWN.S.C"), step("STREAM.CANCEL_MOVE.S")),
    *(step("CONSUMER.PEER.REMOVE.S.C"), step("META.LEADER.STEPDOWN"), step("SERVER.REMOVE")),
    *(step("ACCOUNT.PURGE.X"), step("CONSUMER.MSG.NEXT.S.C"), step("DIRECT.GET.S", {"seq": 1})),
    step("INFO"),
]

CONFIGURATIONS = [
    *(create("S/x"), create("x" * 256), create("S", num_replicas=6), create("S", num_replicas=-1)),
    *(create("S", num_replicas=3), create("S", sealed=True), create("S", mirror_direct=True)),
    *(create("S", description="x" * 5000), create("S", metadata={"a": "x" * 140_000})),
    *(create("S", max_age=-1), create("S", max_age=1000), create("S", duplicate_window=-1)),
    create("S", duplicate_window=1000),
    create("S", max_age=SECOND, duplicate_window=2 * SECOND),
    create("S", deny_purge=True, allow_rollup_hdrs=True),
    create("S", allow_msg_counter=True, discard="new"),
    create("S", allow_msg_counter=True, retention="interest"),
    create("S", allow_msg_counter=True, allow_msg_ttl=True),
    create("S", allow_msg_counter=True, allow_msg_schedules=True),
    *(create("S", discard_new_per_subject=True),),
    create("S", discard_new_per_subject=True, discard="new"),
    *(create("S", subject_delete_marker_ttl=-1), create("S", subject_delete_marker_ttl=5)),
    create("S", allow_msg_schedules=True, discard="new"),
    create("S", persist_mode="async", storage="memory"),
    create("S", persist_mode="async", allow_atomic=True),
    create("S", mirror={"name": "A"}, first_seq=5),
    create("S", mirror={"name": "A"}, subjects=["a"]),
    create("S", mirror={"name": "A"}, sources=[{"name": "B"}]),
    *(create("S", mirror={"name": name}) for name in ("a b", "", "S")),
    create("S", mirror={"name": "A", **BOTH}),
    *(
        create("S", mirror={"name": "A"}, **{flag: True})
        for flag in ("allow_msg_counter", "allow_atomic", "allow_batched", "allow_msg_schedules")
    ),
    create("S", mirror={"name": "A"}, subject_delete_marker_ttl=2 * SECOND),
    *(
        create("S", mirror={"name": "A", "subject_transforms": list_})
        for list_ in ([BAD], [UNKNOWN], OVERLAP)
    ),
    *(create("S", sources=[{"name": "B"}, {"name": "B"}]), create("S", sources=[{"name": ""}])),
    create("S", sources=[{"name": "B", **BOTH}]),
    *(
        create("S", sources=[{"name": "B", "subject_transforms": list_}])
        for list_ in ([BAD], [UNKNOWN], OVERLAP)
    ),
    *(
        create("S", sources=[{"name": "B", "external": {"api": api, "deliver": deliver}}])
        for api, deliver in (
            *(("$JS.API", "x"), ("JS.*.API", "x"), ("JS.A.API", "x.*")),
            *(("JS..API", "x"), ("JS.A API", "x"), ("JS.A.API", "x..y"), ("JS.A.API", "x y")),
        )
    ),
    *(create("S", sources=[{"name": "S"}]),),
    create("S", sources=[{"name": "B"}], allow_msg_schedules=True),
    *(
        create("S", subjects=list_)
        for list_ in ([">"], ["$JS.x"], ["$SYS.x"], ["a b"], [""], ["a..b"], ["a", "a"], ["a", "*"])
    ),
    create("S", subject_transform=BAD),
    create("S", subject_transform=UNKNOWN),
    create("S", subject_transform={"src": "a.*", "dest": "c.*"}),
    create("S", subjects=["a.*"], republish={"src": "a.*", "dest": "a.$1"}),
    create("S", subjects=["a.*"], republish=UNKNOWN),
    create("S", placement={"preferred": "x"}),
    create("S", pedantic=True, max_msgs=-5),
    create("S", pedantic=True, max_age=SECOND),
    create("S", pedantic=True, subject_delete_marker_ttl=2 * SECOND),
    create("S", pedantic=True, allow_msg_schedules=True),
    create("S", pedantic=True, republish={"dest": "b.>"}),
    *(update("S"), step("STREAM.UPDATE.S", {"name": "T"}), info("S"), step("INFO")),
]

STREAMS = [
    *(create("S"), create("S"), create("S", max_msgs=5), create("S", metadata={"a": "b"})),
    *(create("S", metadata={"_nats.ver": "1"}), info("S"), info("S", subjects_filter="..")),
    *(create("S2", subjects=["S"]), create("S2", subjects=["*"])),
    *(step("STREAM.NAMES"), step("STREAM.LIST"), step("STREAM.NAMES", {"offset": 5})),
    *(step("STREAM.NAMES", {"subject": subject}) for subject in ("S", "x", ">")),
    *(step("STREAM.LIST", {"subject": "x"}), step("STREAM.LIST", {"offset": 1})),
    create(
        "T",
        subjects=["t.*"],
        description="d",
        max_age=60 * SECOND,
        max_msgs=10,
        max_bytes=1_000_000,
        max_msg_size=100,
        max_msgs_per_subject=3,
        storage="memory",
        allow_direct=True,
        allow_rollup_hdrs=True,
        metadata={"b": "1", "a": "2"},
        consumer_limits={"max_ack_pending": 5},
        placement={"tags": ["x"]},
        compression="s2",
    ),
    *(create("F", subjects=["f.>"], first_seq=100), info("F"), publish("f.1"), info("F")),
    *(update("T", subjects=["t.*"], storage="file"), update("T", subjects=["t.*", "S"])),
    update("T", subjects=["t.*"], storage="memory", retention="workqueue"),
    update("T", subjects=["t.*", "S"], storage="memory"),
    update("T", subjects=["tt.*"], storage="memory", max_msgs=5),
    *(info("T"), publish("t.1"), publish("tt.1")),
    update("T", subjects=["t.*"], storage="memory", num_replicas=3),
    update("T", subjects=["t.*"], storage="memory", metadata={"x": "y"}),
    *(create("SE", subjects=["se"], max_age=5 * SECOND), publish("se")),
    *(update("SE", subjects=["se"], sealed=True), publish("se"), purge("SE"), delete("SE", seq=1)),
    *(update("SE", subjects=["se"]), info("SE"), step("STREAM.DELETE.SE")),
    create("DE", subjects=["de"], deny_delete=True, deny_purge=True),
    *(publish("de"), purge("DE"), delete("DE", seq=1)),
    update("DE", subjects=["de"], deny_purge=True),
    update("DE", subjects=["de"], deny_delete=True),
    update("DE", subjects=["de"], deny_delete=True, deny_purge=True, max_msgs=7),
    *(create("TT", subjects=["ttl.*"], allow_msg_ttl=True), update("TT", subjects=["ttl.*"])),
    create("RS", subjects=["ry.*"], republish={"dest": "rrs.>", "headers_only": True}),
    create("MK", subjects=["mk.*"], subject_delete_marker_ttl=5 * SECOND, max_age=60 * SECOND),
    create("NA", subjects=[">"], no_ack=True),
    *(step("STREAM.DELETE.S", b"{}"), step("STREAM.DELETE.S"), info("S"), step("STREAM.NAMES")),
    *(step("INFO"), step("STREAM.INFO.T", {"bogus": 1}), step("STREAM.INFO.T", b"junk")),
]

FILE = [
    create("T", subjects=["t.*"], max_msgs=10, max_msgs_per_subject=3),
    *(publish("t.1"), publish("t.2", b"hello"), publish("t.1", b"three"), publish("t.1")),
    *(publish("t.1"), info("T"), info("T", deleted_details=True)),
    *(info("T", subjects_filter=pattern) for pattern in ("t.*", "t.1", "x")),
    info("T", subjects_filter=">", offset=1),
    *(get("T", seq=2), get("T", seq=1), get("T", seq=99), get("T", last_by_subj="t.1")),
    *(get("T", last_by_subj="t.*"), get("T", last_by_subj="zz"), get("T", next_by_subj="t.*")),
    *(get("T", next_by_subj="t.1", seq=1), get("T"), step("STREAM.MSG.GET.T"), get("T", batch=5)),
    *(get("T", seq=1, last_by_subj="x"), get("T", batch=5, seq=2), get("T", start_time=OLD)),
    *(get("T", start_time="2050-01-01T00:00:00Z"), get("T", start_time="bad"), get("X", seq=1)),
    *(get("T", seq=2, start_time=OLD), get("T", multi_last=["t.1"])),
    *(get("T", seq=2, multi_last=["t.1"]), get("T", next_by_subj="t.*", up_to_seq=1)),
    *(get("T", seq=2, batch=-1), get("T", seq=2, max_bytes=-1), get("T", start_time="")),
    *(publish("t.2", b"with headers", X="y"), get("T", last_by_subj="t.2")),
    *(get("T", last_by_subj="t.2", no_hdr=True), delete("T", seq=2)),
    *(info("T", deleted_details=True), delete("T", seq=2), delete("T", seq=99), delete("T", seq=0)),
    *(step("STREAM.MSG.DELETE.T"), delete("X", seq=1), delete("T", seq=4, no_erase=True)),
    *(info("T", deleted_details=True), purge("T", filter="t.1"), info("T"), publish("t.1")),
    *(publish("t.3"), publish("t.4"), publish("t.5"), purge("T", keep=2), info("T")),
    *(purge("T", seq=5, keep=1), purge("T", seq=10), info("T"), purge("T", filter="..")),
    *(purge("T", filter="nope"), purge("T", seq=99), info("T"), publish("t.1"), info("T")),
    *(purge("T"), info("T"), purge("X"), purge("T", filter="t.1", keep=1)),
    *(step("STREAM.PURGE.T", b"{bad"), step("STREAM.PURGE.T", b"junk"), step("INFO")),
]

MEMORY = [create("T", subjects=["t.*"], storage="memory"), *FILE[1:]]

BACKUPS = [
    *(create("T", subjects=["t.*"]), publish("t.1"), publish("t.2"), delete("T", seq=2)),
    *(step("STREAM.SNAPSHOT.T", body) for body in (b"", b"{}", b"junk", {"bogus": 1})),
    step("STREAM.SNAPSHOT.T", {"window_size": "x"}),
    *(step("STREAM.SNAPSHOT.T", {"deliver_subject": to}) for to in ("a.*", "a b", "", "x")),
    step("STREAM.SNAPSHOT.T", {"deliver_subject": "y", "chunk_size": 5, "window_size": -1}),
    *(step("STREAM.SNAPSHOT.X", {"deliver_subject": "x"}), step("STREAM.SNAPSHOT.X")),
    *(step("STREAM.RESTORE.R", body) for body in (b"", b"{}", b"junk", {"bogus": 1})),
    *(step("STREAM.RESTORE.R", {"config": {"name": name}, "state": {}}) for name in ("T", "")),
    step("STREAM.RESTORE.R", {"config": {"name": "R", "max_age": 5}, "state": {}}),
    step("STREAM.RESTORE.T", {"config": {"name": "T"}, "state": {}}),
]

FULL = [
    one
    for storage in ("file", "memory")
    for keys in ({"max_msgs": 2}, {"max_bytes": 80})
    for config in ({"subjects": ["f"], "storage": storage, "discard": "new"},)
    for one in (
        *(create("F", **config), *[publish("f")] * 4, update("F", **config, **keys), info("F")),
        *(publish("f"), purge("F", keep=1), publish("f"), info("F"), step("STREAM.DELETE.F")),
    )
]

CHANGED = [
    one
    for storage in ("file", "memory")
    for config in ({"subjects": ["i.*"], "storage": storage},)
    for one in (
        *(create("I", **config), publish("i.a"), publish("i.b"), publish("i.a")),
        *(update("I", **config, retention="interest"), step("STREAM.DELETE.I")),
        *(create("I", **config), durable("I", "a", filter_subject="i.a")),
        *(publish("i.a"), publish("i.b"), publish("i.c")),
        update("I", **config, retention="interest"),
        *(info("I", subjects_filter=">"), step("CONSUMER.DELETE.I.a"), step("STREAM.DELETE.I")),
    )
]

CORRECTED = [
    *(create("S", allow_msg_schedules=True, deny_purge=True), step("STREAM.DELETE.S")),
    create("S", subject_delete_marker_ttl=2 * SECOND, deny_purge=True),
    *(update("S", deny_purge=True), step("STREAM.DELETE.S"), create("S", deny_purge=True)),
    *(update("S", deny_purge=True, allow_msg_schedules=True), step("STREAM.DELETE.S")),
    *(create("S", max_msg_size=2**31), create("S", max_msg_size=2**31 - 1)),
    *(update("S", max_msg_size=-(2**31) - 1), create("S", template_owner="x")),
    *(
        update("S", sealed=True),
        update("S", sealed=True),
        update("S", sealed=True, deny_delete=True),
    ),
    *(update("S", sealed=True, deny_delete=True, deny_purge=True), step("STREAM.DELETE.S")),
    create("S", sources=[{"name": "A b", "external": {"api": "JS.x", "deliver": "d"}}]),
    *(create("E", subjects=["e"]), step("STREAM.NAMES")),
    update("E", sources=[{"name": "A b", "external": {"api": "JS.x", "deliver": "d"}}]),
    *(info("E"), step("STREAM.INFO.E", Nats_Required_Api_Level="-1")),
    *(step("STREAM.INFO.E", Nats_Required_Api_Level=level) for level in ("0", "+1", "-x", "99")),
]

CONSUMERS = [
    *(create("S", subjects=["s.*"]), publish("s.1"), publish("s.2"), publish("s.2")),
    durable("S", "named", name="other"),
    durable("S", "path", name="a/b"),
    durable("S", "push", deliver_subject="to", max_waiting=-1),
    step("CONSUMER.DURABLE.CREATE.S", {"stream_name": "S", "config": {"durable_name": "x"}}),
    *(consumer("S", "c", sample_freq=text, ack_policy="explicit") for text in ("-1", "-1%", "-0")),
    *(
        consumer("S", f"t{at}", opt_start_time="0001-01-01T00:00:00Z", **keys)
        for at, keys in enumerate(
            (
                {},
                {"deliver_policy": "new"},
                {"deliver_policy": "by_start_sequence", "opt_start_seq": 2},
                {"deliver_policy": "by_start_time"},
            )
        )
    ),
    *(consumer("S", "u", deliver_policy=policy) for policy in ("undefined", "", "none")),
    consumer("S", "u", priority_policy=""),
    *(
        step("CONSUMER.PAUSE.S.u", {"pause_until": text})
        for text in ("", "2020-01-01", "2020-01-01T00:00:00z", "2020-01-01T1:00:00Z", 5)
    ),
    *(step("CONSUMER.PAUSE.S.u", b"junk"), step("CONSUMER.PAUSE.S.u", b"[]")),
    *(step("CONSUMER.RESET.S.none", b"{"), step("CONSUMER.RESET.S.u", b"{"), step("INFO")),
    *(step("CONSUMER.RESET.S.u"), step("CONSUMER.RESET.S.u", {"seq": 1}), step("INFO")),
    step(
        "CONSUMER.CREATE.S.p",
        {"stream_name": "S", "pedantic": True, "config": {"name": "p", "backoff": [SECOND]}},
    ),
    *(
        consumer(
            "S", "o", priority_policy="overflow", priority_groups=["g"], ack_policy="explicit"
        ),
    ),
    *(step("CONSUMER.UNPIN.S.o", {"group": group}) for group in ("g", "h")),
    *(delete("S", seq=2), delete("S", seq=2), delete("S", seq=3), delete("S", seq=3)),
    *(delete("S", seq=1), delete("S", seq=1), delete("S", seq=4)),
    *(consumer("S", "l", deliver_policy="last"), step("CONSUMER.INFO.S.l")),
    *(publish("s.1"), publish("s.2"), delete("S", seq=5)),
    consumer("S", "m", deliver_policy="last"),
    consumer("S", "f", deliver_policy="last", filter_subject="s.*"),
]

# What an update does to the time after which an unused consumer goes.
THRESHOLDS = [
    create("S", subjects=["s.*"]),
    *(
        one
        for keys in (
            ({"durable_name": "q"}, {}, {}, {"description": "x"}),
            ({}, {}, {"durable_name": "q"}, {"durable_name": "q"}, {"description": "x"}),
            ({"inactive_threshold": 60 * SECOND}, {}),
            ({"inactive_threshold": 60 * SECOND}, {"durable_name": "q"}),
            ({"durable_name": "q", "inactive_threshold": 60 * SECOND}, {}),
        )
        for one in (
            *(consumer("S", "q", ack_policy="explicit", **each) for each in keys),
            step("CONSUMER.DELETE.S.q"),
        )
    ),
]

# A consumer that begins after the end, and purges that delete nothing.
BEYOND = [
    one
    for body in ({}, {"keep": 1}, {"filter": "s.1"}, {"filter": "s.1", "keep": 1})
    for one in (
        create("S", subjects=["s.*"], storage="memory"),
        durable("S", "c", deliver_policy="by_start_sequence", opt_start_seq=10),
        durable("S", "d", ack_policy="explicit"),
        *(purge("S", **body), step("CONSUMER.INFO.S.c")),
        *(publish("s.1"), purge("S", filter="s.1", keep=5)),
        *(step("CONSUMER.INFO.S.c"), step("CONSUMER.INFO.S.d"), step("STREAM.DELETE.S")),
    )
]

MOVED = [{"src": "a.2", "dest": "b.2"}, {"src": "a.4", "dest": ""}]
ORIGINS = [
    create("M", mirror={"name": "A"}),
    create("MF", mirror={"name": "A", "opt_start_seq": 3}),
    create("MT", mirror={"name": "A", "subject_transforms": MOVED}, storage="memory"),
    create("S", sources=[{"name": "A"}, {"name": "A", "filter_subject": "a.3"}, {"name": "B"}]),
    create("ST", subjects=["st"], sources=[{"name": "A", "subject_transforms": MOVED}]),
    create("SW", sources=[{"name": "A"}], duplicate_window=SECOND, retention="workqueue"),
    *(update("M", mirror={"name": "B"}), update("M", mirror={"name": "A"}, subjects=["m"])),
    *(update("S", mirror={"name": "A"}), update("M", sources=[{"name": "B"}])),
    *(create("A", subjects=["a.>"], allow_direct=True), create("MD", mirror={"name": "A"})),
    *(create("I", subjects=["i"]), create("MI", mirror={"name": "I"}, mirror_direct=True)),
    create("MP", pedantic=True, mirror={"name": "I"}, mirror_direct=True),
    *(update("MD", subjects=["md"]), publish("md"), publish("st")),
    publish("a.1", Nats_Stream_Source="X 1 > > x"),
    publish("a.1", Nats_Stream_Source="X 1 > > x", Nats_TTL="junk"),
    publish("a.1", Nats_Stream_Source="X 1 > > x", Nats_Expected_Last_Sequence="77"),
    *(step("STREAM.NAMES"), step("STREAM.NAMES", {"subject": "a.1"}), purge("MF")),
]

SCRIPTS = {
    "origins": ORIGINS,
    "bodies": BODIES,
    "configurations": CONFIGURATIONS,
    "streams": STREAMS,
    "file": FILE,
    "memory": MEMORY,
    "backups": BACKUPS,
    "full": FULL,
    "changed": CHANGED,
    "corrected": CORRECTED,
    "consumers": CONSUMERS,
    "thresholds": THRESHOLDS,
    "beyond": BEYOND,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_answers_are_the_same(name: str, original: str, start_broker: StartBroker) -> None:
    steps = SCRIPTS[name]
    theirs = asyncio.run(run(original, steps))
    ours = asyncio.run(run(start_broker({}).nats_url, steps))
    for one, expected, found in zip(steps, theirs, ours, strict=True):
        assert masked(found) == masked(expected), one
