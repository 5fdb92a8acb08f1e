"""A history of a folder: the recorder's entries as operations on files and names."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAD = struct.Struct("<IBBHHHIQQqq")  # entry_t of recorder.c
(
    CREATE,
    TRUNCATE,
    WRITE,
    ALLOCATE,
    RENAME,
    LINK,
    UNLINK,
    RMDIR,
    MKDIR,
    FSYNC,
    FDATASYNC,
    SYNCFS,
    CLOSE,
    UNKNOWN,
    MARK,
) = range(1, 16)
WHOLE, BEGIN, END = range(3)
NEVER = 1 << 60
NAMES = frozenset((CREATE, RENAME, LINK, UNLINK, RMDIR, MKDIR))
DATA = frozenset((WRITE, TRUNCATE, ALLOCATE))

Tree = dict[str, bytes | None]  # by relative path; None = a folder


Without = Callable[[str], bool]  # of the path that is synced


class RecordError(Exception):
    """The recorder met a call that it does not understand: the record is invalid."""


@dataclass(slots=True)
class Change:
    """A name in a folder now refers to another node, or (None) to none."""

    folder: int
    name: str
    node: int | None
    durable_at: int = NEVER  # the position at which a sync of the folder has returned


@dataclass(slots=True)
class Op:
    """One step of the history; its position is its place in `History.ops`."""

    kind: int
    node: int = -1
    offset: int = 0
    length: int = 0
    data: bytes = b""
    changes: list[Change] = field(default_factory=list)
    begun: int = -1  # of a sync's end: the position of its beginning
    failed: bool = False
    over: bool = False  # a rename onto a file that was there
    grows: bool = False  # a write or cut that changes the length, or needs new blocks
    durable_at: int = NEVER  # of data: the position at which a sync has returned
    mark: dict[str, Any] | None = None
    path: str = ""
    id: int = 0
    phase: int = WHOLE


class History:
    """The operations in order, starting from a folder that was on the disk."""

    ROOT = 0

    def __init__(self, base: Tree, inodes: dict[str, int]) -> None:
        """`base`: the initial content; `inodes`: numbers of its files and folders, "" = root."""
        self.ops: list[Op] = []
        self.base: dict[int, bytes | None] = {self.ROOT: None}  # content, None = a folder
        self.base_names: dict[int, dict[str, int]] = {self.ROOT: {}}
        self._nodes: dict[int, int] = {}  # by inode
        self._count = 1
        self.folders = {self.ROOT}
        self._names: dict[int, dict[str, int]] = {self.ROOT: {}}
        self._sizes: dict[int, int] = {}
        self._blocks: dict[int, int] = {}  # bytes for which there are blocks
        self._begun: dict[tuple[int, int], int] = {}
        self.by_node: dict[int, list[int]] = {}  # positions of data operations
        self.named: list[int] = []  # positions of operations on names
        self.marks: list[int] = []
        self._nodes[inodes.get("", 0)] = self.ROOT
        for path in sorted(base):
            node = self._new(base[path] is None)
            data = base[path]
            self.base[node] = data
            self._nodes[inodes.get(path, -node)] = node
            parent, _, name = path.rpartition("/")
            self._names[self._find(parent)][name] = node
            if data is None:
                self.base_names[node] = {}
            else:
                self._sizes[node] = self._blocks[node] = len(data)
        self.base_names = {folder: dict(names) for folder, names in self._names.items()}

    # --- building

    def _new(self, folder: bool) -> int:
        node = self._count
        self._count += 1
        if folder:
            self.folders.add(node)
            self._names[node] = {}
        else:
            self._sizes[node] = self._blocks[node] = 0
        return node

    def _find(self, path: str) -> int:
        node = self.ROOT
        for part in path.split("/"):
            if part not in ("", "."):
                node = self._names[node][part]
        return node

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return self._find(parent), name

    def read(self, record: bytes, root: str, without: Without | None = None) -> History:
        """Read the recorder's file; `without`: True for syncs to leave out."""
        at = 0
        while at < len(record):
            size, kind, phase, n, n2, failed, extra, number, ino, offset, length = HEAD.unpack_from(
                record, at
            )
            text = at + HEAD.size
            path = record[text : text + n].decode(errors="surrogateescape")
            path2 = record[text + n : text + n + n2].decode(errors="surrogateescape")
            data = record[text + n + n2 : at + size]
            at += size
            if kind == UNKNOWN:
                raise RecordError(f"{data.decode()} of {path} {path2}")
            path = os.path.normpath(path)[len(root) + 1 :]
            path2 = os.path.normpath(path2)[len(root) + 1 :] if path2 else ""
            op = Op(kind, path=path, id=number, phase=phase, failed=bool(failed))
            op.offset, op.length, op.data = offset, length, data
            if without is not None and kind in (FSYNC, FDATASYNC, SYNCFS) and without(path):
                self.ops.append(Op(CLOSE, path=path))  # positions stay what they are
                continue
            try:
                self._add(op, ino, path, path2, extra)
            except KeyError as problem:
                raise RecordError(f"{kind} of {path} {path2}: no {problem}") from problem
        self._settle()
        return self

    def _add(self, op: Op, ino: int, path: str, path2: str, extra: int) -> None:
        kind, here = op.kind, len(self.ops)
        if kind == MARK:
            op.mark = json.loads(op.data)
            self.marks.append(here)
        elif kind in (CREATE, MKDIR):
            op.node = self._nodes[ino] = self._new(kind == MKDIR)
            self._change(op, path, op.node)
        elif kind == LINK:
            folder, name = self._place(path)
            op.node = self._names[folder][name]
            self._change(op, path2, op.node)
        elif kind in (UNLINK, RMDIR):
            folder, name = self._place(path)
            op.node = self._names[folder][name]
            self._change(op, path, None)
        elif kind == RENAME:
            folder, name = self._place(path)
            op.node = self._names[folder][name]
            to, name2 = self._place(path2)
            before = self._names[to].get(name2)
            op.over = before is not None and before not in self.folders
            if before != op.node:
                self._change(op, path, None)
                self._change(op, path2, op.node)
        elif kind == SYNCFS:
            if op.phase == END:
                op.begun = self._begun.pop((-1, op.id))
            else:
                self._begun[-1, op.id] = here
        elif kind == CLOSE:
            if ino not in self._nodes:
                return
            op.node = self._nodes[ino]
        elif kind in (FSYNC, FDATASYNC):
            op.node = self._nodes[ino]
            if op.phase == END:
                op.begun = self._begun.pop((op.node, op.id))
            else:
                self._begun[op.node, op.id] = here
        else:
            op.node = self._nodes[ino]
            self._data(op, extra)
            self.by_node.setdefault(op.node, []).append(here)
        if op.changes:
            self.named.append(here)
        self.ops.append(op)

    def _change(self, op: Op, path: str, node: int | None) -> None:
        folder, name = self._place(path)
        if node is None:
            self._names[folder].pop(name)
        else:
            self._names[folder][name] = node
        op.changes.append(Change(folder, name, node))

    def _data(self, op: Op, extra: int) -> None:
        node, size = op.node, self._sizes[op.node]
        if op.kind == WRITE:
            end = op.offset + len(op.data)
            op.grows = end > size or end > self._blocks[node]
            self._sizes[node] = max(size, end)
            self._blocks[node] = max(self._blocks[node], -(-end // 4096) * 4096)
        elif op.kind == TRUNCATE:
            op.grows = True
            self._sizes[node] = op.length
            self._blocks[node] = min(self._blocks[node], -(-op.length // 4096) * 4096)
        else:
            op.grows = True
            if not extra & 1:  # FALLOC_FL_KEEP_SIZE
                self._sizes[node] = max(size, op.offset + op.length)
            op.length = self._sizes[node]
            self._blocks[node] = max(self._blocks[node], self._sizes[node])

    def _settle(self) -> None:
        """For each operation: the position from which POSIX guarantees it on the disk."""
        syncs: dict[int, list[tuple[int, int, bool]]] = {}  # begin, end, failed
        everything = []
        for end, op in enumerate(self.ops):
            if op.begun < 0:
                continue
            if op.kind == SYNCFS:
                everything.append((op.begun, end, False))
            else:
                syncs.setdefault(op.node, []).append((op.begun, end, op.failed))
        for at, op in enumerate(self.ops):
            if op.kind in DATA:
                op.durable_at = _durable(at, syncs.get(op.node, []), everything)
            for change in op.changes:
                change.durable_at = _durable(at, syncs.get(change.folder, []), everything)

    # --- what it was like

    def names_at(self, cut: int) -> dict[int, dict[str, int]]:
        """All names as a process saw them at a position."""
        names = {folder: dict(found) for folder, found in self.base_names.items()}
        for at in self.named:
            if at >= cut:
                break
            for change in self.ops[at].changes:
                apply(names, change)
        return names

    def content_at(self, node: int, cut: int) -> bytearray:
        """A file as a process saw it at a position."""
        data = bytearray(self.base.get(node) or b"")
        for at in self.by_node.get(node, ()):
            if at >= cut:
                break
            put(data, self.ops[at])
        return data

    def tree(self, names: dict[int, dict[str, int]], content: Any) -> Tree:
        """Everything reachable from the root; `content(node)`: a file's bytes."""
        found: Tree = {}
        stack = [(self.ROOT, "", frozenset([self.ROOT]))]
        while stack:
            folder, path, above = stack.pop()
            for name, node in names.get(folder, {}).items():
                inner = f"{path}/{name}" if path else name
                if node not in self.folders:
                    found[inner] = bytes(content(node))
                elif node not in above:
                    found[inner] = None
                    stack.append((node, inner, above | {node}))
        return found

    def last(self) -> Tree:
        """Everything done, nothing lost."""
        end = len(self.ops)
        return self.tree(self.names_at(end), lambda node: self.content_at(node, end))


def _durable(
    at: int, syncs: list[tuple[int, int, bool]], everything: list[tuple[int, int, bool]]
) -> int:
    found = NEVER
    for begin, end, failed in syncs:
        if begin <= at:
            continue
        if failed:
            # the pages count as clean from now on: no later sync writes them
            return min(found, _first(at, everything, end))
        if end < found:
            found = end
            break
    return min(found, _first(at, everything, NEVER))


def _first(at: int, everything: list[tuple[int, int, bool]], before: int) -> int:
    return min((end for begin, end, _ in everything if at < begin and end < before), default=NEVER)


def apply(names: dict[int, dict[str, int]], change: Change) -> None:
    """Change or remove a name in a folder."""
    found = names.setdefault(change.folder, {})
    if change.node is None:
        found.pop(change.name, None)
    else:
        found[change.name] = change.node


def put(data: bytearray, op: Op) -> None:
    """Apply an operation to a file's content."""
    if op.kind == WRITE:
        if op.offset > len(data):
            data += bytes(op.offset - len(data))
        data[op.offset : op.offset + len(op.data)] = op.data
    elif op.kind == TRUNCATE and op.length < len(data):
        del data[op.length :]
    elif op.length > len(data):
        data += bytes(op.length - len(data))


def read_tree(root: Path) -> tuple[Tree, dict[str, int]]:
    """The content of a folder, and its inode numbers."""
    tree: Tree = {}
    inodes = {"": root.stat().st_ino} if root.exists() else {}
    for folder, folders, files in os.walk(root):
        above = os.path.relpath(folder, root)
        above = "" if above == "." else above + "/"
        for name in folders:
            tree[above + name] = None
            inodes[above + name] = os.stat(f"{folder}/{name}").st_ino
        for name in files:
            path = f"{folder}/{name}"
            tree[above + name] = Path(path).read_bytes()
            inodes[above + name] = os.stat(path).st_ino
    return tree, inodes


def lay_out(root: str, tree: Tree) -> None:
    """Create a folder with this content."""
    os.makedirs(root)
    for path in sorted(tree):
        data = tree[path]
        if data is None:
            os.mkdir(f"{root}/{path}")
        else:
            fd = os.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            os.write(fd, data)
            os.close(fd)
