"""Segments and journals of any bytes: nothing invented, nothing twice, no stuck log."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from fuzz.engine import Target
from support.engine import Rig, numbered, scratch, segment_files
from support.native.logs import locate_record, scan_records

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append
from broker.engine.log.record import crc32c

FILE_HEADER = 64
RECORD = 40
JOURNAL_HEADER = 16
BLOCK = 8
LIMITS: dict[str, Any] = {
    "segment_bytes": 1024,
    "window_max": 1 << 12,
    "entries_max": 1 << 12,
    "inline_bytes": 1 << 16,  # quicker, and this thread is the one that is watched
}
CREDIT = 1 << 20
TOKENS = [struct.pack("<I", length) for length in (40, 64, 90)] + [struct.pack("<Q", 3)]
QUIET_TURNS = 3  # without a record: there are no more
MORE = b"one more"

Files = dict[str, bytes]
STAGED = 4  # a record's flag: see engine/bulk/blocks.pxd

Record = tuple[int, bytes, bytes, bytes, bytes]  # seq, subject, reply, headers, body


class Template:
    """A log `t` as an engine left it: three segments, and a cursor that is halfway through."""

    def __init__(self) -> None:
        root = scratch()
        try:
            # the sums depend on the log's id: an input must mean the same in every process
            with mock.patch("os.urandom", bytes), Rig(root, **LIMITS) as rig:
                log = rig.log()
                cursor = log.open_cursor("c")
                consumer = LocalConsumer(cursor, 6)
                append(log, b"with all", headers=b"NATS/1.0\r\n\r\n", reply=b"r", subject=b"t.x")
                append(log, b"later", not_before_ns=rig.turn.wall_ns + 10**12)
                assert rig.publish(log, numbered(30, size=50)) == [1] * 30
                first = [record[0] for record in consumer.records]
                consumer.finish(first[0])
                consumer.finish(first[2])
                consumer.requeue(first[1], 1000)
                consumer.requeue(first[3])
                rig.settle()
                consumer.finish(first[4])
                rig.settle()
                rig.close()
            self.files = {
                str(path.relative_to(root)): path.read_bytes()
                for path in root.rglob("*")
                if path.is_file()
            }
            self.segments = [str(path.relative_to(root)) for path in segment_files(root)]
            (self.journal,) = (name for name in self.files if name.endswith(".cur"))
            self.log_id = self.files[self.segments[0]][16:32]
            self.salt = crc32c(self.log_id)
        finally:
            shutil.rmtree(root)

    def readable(self, files: Files) -> dict[int, set[Record]]:
        """Every record that stands somewhere in the segments with a sum that fits."""
        found: dict[int, set[Record]] = {}
        for name in files:
            for record in self.records(files[name]) if name.endswith(".seg") else ():
                found.setdefault(record[0], set()).add(record)
        return found

    def records(self, data: bytes) -> Iterator[Record]:
        for at in range(FILE_HEADER, len(data) - RECORD + 1, 8):
            length, crc = struct.unpack_from("<II", data, at)
            if not RECORD <= length <= len(data) - at:
                continue
            if crc32c(data[at + 8 : at + length], self.salt) != crc:
                continue
            seq, subject_len, reply_len, packed = struct.unpack_from("<Q16xHHI", data, at + 8)
            rest = data[at + RECORD : at + length]
            ends = (0, subject_len, subject_len + reply_len)
            headers = ends[2] + (packed & 0xFFFFFF)
            parts = [rest[ends[0] : ends[1]], rest[ends[1] : ends[2]], rest[ends[2] : headers]]
            reply = b"" if packed >> 24 & STAGED else parts[1]  # then it is no subject
            yield seq, parts[0] or b"t", reply, parts[2], rest[headers:]


def take_all(rig: Rig, consumer: LocalConsumer) -> list[Record]:
    """Everything that can be had now; no record twice."""
    found: list[Record] = []
    quiet = 0
    while quiet < QUIET_TURNS:
        rig.settle()
        records, consumer.records = consumer.records, []
        heads, consumer.heads = consumer.heads or [], []
        for (seq, _, _, body), (subject, reply, headers) in zip(records, heads, strict=True):
            found.append((seq, subject, reply, headers, body))
        quiet = 0 if records else quiet + 1
    assert len({record[0] for record in found}) == len(found), "a record twice"
    return found


def open_files(root: Path, files: Files) -> Rig | None:
    """An engine on these files; None when it refuses them as it should."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    rig = Rig(root, **LIMITS)
    if "t" in rig.engine.quarantined:
        rig.abandon()
        return None
    return rig


def check(template: Template, files: Files) -> None:
    """Open, read, finish half, append, stop, and open again."""
    root = scratch()
    try:
        rig = open_files(root, files)
        if rig is None:
            return
        with rig:
            consumer = listen(rig)
            found = take_all(rig, consumer)
            known = template.readable(files)
            for record in found:
                assert record in known.get(record[0], ()), f"invented: {record}"
            done = [record[0] for record in found[::2]]
            for seq in done:
                assert consumer.finish(seq) == 0
            assert rig.publish(rig.engine.log("t"), [MORE]) == [1], "the log takes no more"
            (more,) = take_all(rig, consumer)
            assert more[4] == MORE
            assert all(record[0] < more[0] for record in found)
            if len(found) % 4 == 0:
                rig.close()  # in order; else as after kill -9
        with Rig(root, **LIMITS) as rig:
            again = take_all(rig, listen(rig))
            assert sorted(again) == sorted([*found[1::2], more]), "not the same after a restart"
    finally:
        shutil.rmtree(root)


def listen(rig: Rig) -> LocalConsumer:
    log: Any = rig.engine.log("t")
    cursor = log.open_cursor("c")
    cursor.unpause()
    consumer = LocalConsumer(cursor, CREDIT)
    consumer.heads = []
    return consumer


# --- the records alone


def check_records(template: Template, data: bytes) -> None:
    """The scanner finds nothing that is not there, and readers find what the scanner did."""
    found, cut, bad = scan_records(data, template.log_id)
    assert 0 <= cut <= len(data)
    assert 0 <= bad <= len(data) - cut
    known = set(template.records(bytes(FILE_HEADER) + data))
    for seq, subject, *rest in found:
        assert (seq, subject or b"t", *rest) in known, "invented"
    seqs = [record[0] for record in found]
    assert all(before < after for before, after in pairwise(seqs))
    for seq in (0, 1, *seqs[:3], *seqs[-1:], 1 << 63):
        at = locate_record(data, template.log_id, seq)
        assert at is None or at >= seq
        if not cut and not bad:
            assert at == min((s for s in seqs if s >= seq), default=None)


# --- one file of it is the input


def segment_files_of(template: Template, data: bytes) -> Files:
    """The input's first byte tells which segment it is, and whether the cursor is new."""
    kind = data[0] if data else 0
    files = dict(template.files)
    if kind & 4:
        del files[template.journal]
    files[template.segments[kind % 3 if kind & 3 != 3 else -1]] = data[1:]
    return files


def mend_segment(template: Template, rng: random.Random, data: bytearray) -> None:
    """Make the sums fit again, so that what they guard is looked at."""
    if rng.random() < 0.2:
        return
    if rng.random() < 0.9:
        data[1 : 1 + 16 + 16] = template.files[template.segments[0]][:32]
        struct.pack_into("<I", data, 1 + 12, crc32c(bytes(data[1 + 16 : 1 + FILE_HEADER])))
    at = 1 + FILE_HEADER
    while at + RECORD <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        if RECORD <= length <= len(data) - at:
            if rng.random() < 0.95:
                crc = crc32c(bytes(data[at + 8 : at + length]), template.salt)
                struct.pack_into("<I", data, at + 4, crc)
            at += -(-length // 8) * 8
        else:
            at += 8


def mend_journal(rng: random.Random, data: bytearray) -> None:
    """The same for the blocks of a journal."""
    if rng.random() < 0.2:
        return
    at = JOURNAL_HEADER
    while at + BLOCK < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        if not 0 < length <= len(data) - at - BLOCK:
            length = rng.randint(1, min(40, len(data) - at - BLOCK))
            struct.pack_into("<I", data, at, length)
        if rng.random() < 0.98:
            crc = crc32c(bytes(data[at + BLOCK : at + BLOCK + length]))
            struct.pack_into("<I", data, at + 4, crc)
        at += BLOCK + length


def mend_records(template: Template, rng: random.Random, data: bytearray) -> None:
    """As mend_segment, for what stands behind the file header."""
    padded = bytearray(1 + FILE_HEADER) + data
    mend_segment(template, rng, padded)
    data[:] = padded[1 + FILE_HEADER :]


def records_target() -> Target:
    """What `make fuzz` runs."""
    template = Template()
    return Target(
        "records",
        lambda data: check_records(template, data),
        [b"", *(template.files[name][FILE_HEADER:] for name in template.segments)],
        TOKENS,
        length_max=4_000,
        repair=lambda rng, data: mend_records(template, rng, data),
    )


def segment_target() -> Target:
    """What `make fuzz` runs."""
    template = Template()
    return Target(
        "segment",
        lambda data: check(template, segment_files_of(template, data)),
        [
            bytes([kind]) + template.files[template.segments[kind & 3]]
            for kind in (0, 1, 2, 4, 5, 6)
        ],
        TOKENS,
        length_max=4_000,
        repair=lambda rng, data: mend_segment(template, rng, data),
        leaks=False,
    )


def journal_target() -> Target:
    """What `make fuzz` runs."""
    template = Template()
    whole = template.files[template.journal]
    return Target(
        "journal",
        lambda data: check(template, {**template.files, template.journal: data}),
        [whole, whole[:JOURNAL_HEADER], b"", block(b"\1\1\3") + block(b"\3\3\0\0" + b"\5\1")],
        [b"\1\5\2", b"\2\7", b"\3\4\1\0", b"\4\3", b"\5\1", b"\xff\xff\xff\x7f"],
        length_max=1_000,
        repair=mend_journal,
        leaks=False,
    )


def block(payload: bytes) -> bytes:
    """A block of operations as a journal has it."""
    return struct.pack("<II", len(payload), crc32c(payload)) + payload
