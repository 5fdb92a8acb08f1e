"""Possible contents of a disk after a power cut at some position of a history.

`posix`: the worst that the standard allows. Data written since the last sync of a file may be
present, missing, torn at sectors of 512 bytes, or zeros; a name is present if its folder has been
synced since, otherwise perhaps; files may lose their names, and names their contents.

`ext4-ordered`: ext4 with its defaults. Names and lengths are written in order, one transaction
after the other. Allocation is delayed: a new file may be empty and a grown one as short as before
until it is synced or written back, and blocks allocated in a transaction are written before it.
A rename over a file, and the close of a file that was emptied, allocate at once (auto_da_alloc).
A sync of a file commits the running transaction if it contains the file; for fdatasync only a new
length or new blocks count.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from powercut.history import (
    ALLOCATE,
    CLOSE,
    CREATE,
    END,
    FDATASYNC,
    FSYNC,
    MKDIR,
    RENAME,
    SYNCFS,
    TRUNCATE,
    WRITE,
    Change,
    History,
    Op,
    Tree,
    apply,
    put,
)

SECTOR = 512
BLOCK = 4096
MODELS = ("posix", "ext4")
# What becomes of what nobody has synced.
KEEP = ("none", "all", "names", "data", "but-one", "only-one", "random", "torn")


@dataclass(frozen=True, slots=True)
class Cut:
    """The position of the power cut and the behaviour of the disk: they define a state."""

    at: int
    model: str
    keep: str
    seed: str


def state(history: History, cut: Cut) -> Tree:
    """The content of the disk."""
    rng = Random(cut.seed)
    if cut.keep == "all":
        names = history.names_at(cut.at)
        return history.tree(names, lambda node: history.content_at(node, cut.at))
    if cut.model == "posix":
        return _posix(history, cut, rng)
    return _Ext4(history, cut, rng).tree()


# --- posix


def _posix(history: History, cut: Cut, rng: Random) -> Tree:
    loose = []  # positions of what no sync has answered for
    for at in range(cut.at):
        op = history.ops[at]
        if op.kind in (WRITE, TRUNCATE, ALLOCATE):
            if op.durable_at >= cut.at:
                loose.append(at)
        elif op.changes and any(change.durable_at >= cut.at for change in op.changes):
            loose.append(at)
    one = rng.choice(loose) if loose else -1
    share = rng.choice((0.1, 0.5, 0.9))

    def is_kept(at: int) -> bool:
        match cut.keep:
            case "names":
                return bool(history.ops[at].changes)
            case "data":
                return not history.ops[at].changes
            case "but-one":
                return at != one
            case "only-one":
                return at == one
            case "random" | "torn":
                return rng.random() < share
            case _:
                return False

    kept = {at for at in loose if is_kept(at)}
    names = {folder: dict(found) for folder, found in history.base_names.items()}
    for at in history.named:
        if at >= cut.at:
            break
        _rename_posix(names, history.ops[at].changes, cut.at, at in kept, rng)

    def content(node: int) -> bytes | bytearray:
        data = bytearray(history.base.get(node) or b"")
        for at in history.by_node.get(node, ()):
            if at >= cut.at:
                break
            op = history.ops[at]
            if op.durable_at < cut.at or (at in kept and cut.keep != "torn"):
                put(data, op)
            elif at in kept:
                _put_torn(data, op, rng)
        return data

    return history.tree(names, content)


def _rename_posix(
    names: dict[int, dict[str, int]], changes: list[Change], cut: int, kept: bool, rng: Random
) -> None:
    """A rename within a folder is one step; between two folders, one step for each."""
    if len({change.folder for change in changes}) == 1:
        if kept or changes[0].durable_at < cut:
            for change in changes:
                apply(names, change)
        return
    gone, come = changes
    arrives = kept or come.durable_at < cut
    if arrives:
        apply(names, come)
    # a node is not lost by being moved: the old name goes when the new one is there
    if gone.durable_at < cut or (kept and arrives and rng.random() < 0.5):
        apply(names, gone)


def _put_torn(data: bytearray, op: Op, rng: Random) -> None:
    """Some sectors of a write, others unchanged, others zeros."""
    if op.kind != WRITE:
        put(data, op)
        return
    begin, end = op.offset, op.offset + len(op.data)
    if rng.random() < 0.5:
        end = rng.randrange(begin, end + 1) // SECTOR * SECTOR  # the length comes later
    while begin < end:
        stop = min(end, (begin // SECTOR + 1) * SECTOR)
        draw = rng.random()
        if draw < 0.8:
            piece = op.data[begin - op.offset : stop - op.offset]
            put(data, Op(WRITE, offset=begin, data=piece if draw < 0.6 else bytes(len(piece))))
        begin = stop


# --- ext4


class _Ext4:
    """The file system's own work, step by step."""

    def __init__(self, history: History, cut: Cut, rng: Random) -> None:
        self.history = history
        self.cut = cut
        self.rng = rng
        self.committed = 0  # names and lengths before this position are on the disk
        # of each file: up to where it was written back, and the transaction that knows its length
        self.flushed: dict[int, list[tuple[int, int]]] = {}
        self.changed: dict[int, int] = {}  # the last position at which an inode changed
        self.resized: dict[int, int] = {}  # and got a length or blocks that are journalled
        self.grown: dict[int, int] = {}  # the last position at which it wants blocks
        self.emptied: set[int] = set()
        self.doubtful: dict[int, list[tuple[int, int]]] = {}
        self.run()

    def run(self) -> None:
        history, cut, rng = self.history, self.cut, self.rng
        quiet = cut.keep == "none"
        count = 0 if quiet else rng.choice((0, 0, 1, 2, 4))
        # the file system's own turns: most of them shortly before the end
        turns: dict[int, list[str]] = {}
        for _ in range(count):
            back = rng.choice((4, 16, 64, cut.at + 1))
            at = rng.randrange(max(0, cut.at - back), cut.at + 1)
            turns.setdefault(at, []).append(rng.choice(("commit", "write", "both", "some")))
        if cut.keep == "names":
            turns.setdefault(cut.at, []).append("commit")
        if cut.keep == "data":
            turns.setdefault(cut.at, []).append("write")
        for at in range(cut.at):
            for turn in turns.get(at, ()):
                self.turn(turn, at)
            op = history.ops[at]
            if op.kind in (WRITE, TRUNCATE, ALLOCATE):
                self.data(op, at)
            elif op.changes:
                self.names(op, at)
            elif op.kind == CLOSE:
                if op.node in self.emptied:
                    self.emptied.discard(op.node)
                    self.flush(op.node, at)
            elif op.begun >= 0 and op.phase == END:
                self.sync(op)
        for turn in turns.get(cut.at, ()):
            self.turn(turn, cut.at)
        self.in_flight()

    def in_flight(self) -> None:
        """Unfinished syncs may have done a part of their work."""
        if self.cut.keep == "none":
            return
        begun = {}
        for at in range(max(0, self.cut.at - 200), self.cut.at):
            op = self.history.ops[at]
            if op.kind in (FSYNC, FDATASYNC):
                if op.phase == END:
                    begun.pop((op.node, op.id), None)
                else:
                    begun[op.node, op.id] = at
        for (node, _), at in begun.items():
            draw = self.rng.random()
            if draw < 0.6:
                self.flush(node, at)
            if draw < 0.3:
                self.committed = max(self.committed, at)

    def turn(self, what: str, at: int) -> None:
        if what in ("write", "both"):
            for node in list(self.grown) + list(self.changed):
                self.flush(node, at)
        if what == "some":
            for node in sorted({*self.grown, *self.changed}):
                if self.rng.random() < 0.5:
                    self.flush(node, at)
        if what in ("commit", "both"):
            self.committed = max(self.committed, at)

    def data(self, op: Op, at: int) -> None:
        self.changed[op.node] = at
        if op.kind == WRITE:
            if op.grows:
                self.grown[op.node] = at
        else:
            self.resized[op.node] = at
            if op.kind == TRUNCATE and op.length == 0:
                self.emptied.add(op.node)

    def names(self, op: Op, at: int) -> None:
        for change in op.changes:
            self.changed[change.folder] = self.resized[change.folder] = at
        self.changed[op.node] = at
        if op.kind in (CREATE, MKDIR):
            self.resized[op.node] = at
        if op.kind == RENAME and op.over:
            self.flush(op.node, at)

    def flush(self, node: int, at: int) -> None:
        """Write a file back; its new blocks and length go into the running transaction."""
        found = self.flushed.setdefault(node, [])
        if found and found[-1][0] >= at:
            return
        grown = self.grown.pop(node, None)
        if grown is not None and grown < at:
            self.resized[node] = max(at - 1, self.resized.get(node, -1))
            found.append((at, at - 1))
            return
        if grown is not None:
            self.grown[node] = grown
            # a part of what wants blocks was there already
            found.append((at, at - 1))
            self.resized[node] = max(at - 1, self.resized.get(node, -1))
            return
        found.append((at, -1))

    def sync(self, op: Op) -> None:
        begun, node = op.begun, op.node
        if op.kind == SYNCFS:
            for each in {*self.grown, *self.changed}:
                self.flush(each, begun)
            self.committed = max(self.committed, begun)
            return
        if op.failed:
            before = self.flushed.get(node, [(0, -1)])[-1][0]
            self.doubtful.setdefault(node, []).append((before, begun))
            return
        if node not in self.history.folders:
            self.flush(node, begun)
        last = self.resized.get(node, -1)
        if op.kind == FSYNC:
            last = max(last, self.changed.get(node, -1))
        if last >= self.committed:
            self.committed = max(self.committed, begun)
        # what was written back meanwhile: the sync waits for that, and for its transaction
        covering = [each for each in self.flushed.get(node, ()) if each[0] >= begun]
        if covering:
            self.committed = max(self.committed, covering[0][1] + 1)

    # --- what is found

    def tree(self) -> Tree:
        history = self.history
        names = {folder: dict(found) for folder, found in history.base_names.items()}
        for at in history.named:
            if at >= self.committed:
                break
            for change in history.ops[at].changes:
                apply(names, change)
        return history.tree(names, self.content)

    def content(self, node: int) -> bytes | bytearray:
        history, rng, cut = self.history, self.rng, self.cut
        positions = history.by_node.get(node, ())
        visible = flushed = 0
        for upto, transaction in self.flushed.get(node, ()):
            flushed = max(flushed, upto)
            if transaction < self.committed:
                visible = max(visible, upto)
        doubtful = self.doubtful.get(node, ())
        data = bytearray(history.base.get(node) or b"")
        overwrites = []
        for at in positions:
            if at >= cut.at:
                break
            op = history.ops[at]
            if at < visible:
                if (
                    not any(begin <= at < end for begin, end in doubtful)
                    or rng.random() < 0.5
                    or op.kind != WRITE
                ):
                    put(data, op)
            elif op.kind != WRITE:
                if at < self.committed:
                    put(data, op)
            else:
                overwrites.append((at, op))
        room = -(-len(data) // BLOCK) * BLOCK
        for at, op in overwrites:
            # into blocks that are there: such data need no transaction
            end = min(op.offset + len(op.data), len(data))
            if at < self.committed and cut.keep != "none" and op.offset < room:
                longer = min(op.offset + len(op.data), room)
                if longer > len(data):
                    data += bytes(longer - len(data))
                    end = longer
            self.overwrite(data, op, end, at < flushed)
        return data

    def overwrite(self, data: bytearray, op: Op, end: int, certain: bool) -> None:
        begin = op.offset
        while begin < end:
            stop = min(end, (begin // BLOCK + 1) * BLOCK)
            if certain or (self.cut.keep not in ("none", "names") and self.rng.random() < 0.5):
                data[begin:stop] = op.data[begin - op.offset : stop - op.offset]
            begin = stop
