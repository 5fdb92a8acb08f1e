"""File stores of NATS Streaming: some written by the original, and small ones made here.

The recorded ones are in tests/unit/importers/stores. `python -m support.stan.stores` in tests/
writes them again if the original is on the PATH.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from broker.protocols.stan import stan_pb2 as pb
from support.stan.source import StanClient, StanSource, fill

RECORDED = Path(__file__).resolve().parents[2] / "unit" / "importers" / "stores"
VERSION = struct.pack("<I", 1)


async def orders(url: str) -> None:
    """`orders` keeps 11 to 40 of 40 messages, `other` one; see the subscriptions below.

    Offline: worker's durable `d` has not acknowledged 33, 35, 40, the durable group `dq:g` 40.
    The client `stay` hangs up without closing: its durable `live` has not acknowledged 39, nor has
    its plain subscription anything but the last; the members of the group `crew` have 11 to 40.
    """
    publisher = await StanClient("publisher").connect(url)
    worker = await StanClient("worker").connect(url)
    stay = await StanClient("stay").connect(url)
    durable = await worker.subscribe("orders", durable="d")
    group = await worker.subscribe("orders", durable="dq", queue="g")
    erased = await worker.subscribe("orders", durable="erased")
    live = await stay.subscribe("orders", durable="live")
    plain = await stay.subscribe("orders")
    crew = [await stay.subscribe("orders", queue="crew") for _ in range(2)]
    readers = [durable, group, erased, live, plain]
    await publisher.publish("orders", *(b"order %d" % i for i in range(1, 11)))
    for reader in readers:
        await reader.take_and_ack(10)
    for member in crew:
        found = await member.take(5)
        await member.ack(*(message.sequence for message in found))
    await publisher.publish("orders", *(b"order %d" % i for i in range(11, 41)))
    for reader in readers:
        await reader.take(30)
    await durable.ack(*(n for n in range(11, 40) if n not in (33, 35)))
    await group.ack(*range(11, 40))
    await live.ack(*(n for n in range(11, 41) if n != 39))
    await plain.ack(40)
    await publisher.publish("other", b"with a reply", reply="answers.here")
    await erased.close(erase=True)
    await durable.close()
    await group.close()
    await worker.close()
    await publisher.close()
    await stay.vanish()


async def secret(url: str) -> None:
    """Three messages, the second one empty."""
    publisher = await StanClient("publisher").connect(url)
    await publisher.publish("secret", b"one", b"", b"three")
    await publisher.close()


class Recipe(NamedTuple):
    """How a store is made."""

    work: Callable[[str], Coroutine[Any, Any, None]]
    flags: tuple[str, ...]


RECIPES = {
    "orders": Recipe(orders, ("-file_slice_max_msgs", "10", "-mm", "25")),
    "secret": Recipe(secret, ("-encrypt", "-encryption_key", "a key")),
}


def original_store(name: str, folder: Path) -> Path:
    """Have an original write one."""
    recipe = RECIPES[name]
    source = StanSource(folder, *recipe.flags)
    fill(source, recipe.work)
    return source.store


def recorded_store(name: str, folder: Path) -> Path:
    """A copy of one that an original has written."""
    return Path(shutil.copytree(RECORDED / name, folder / "store"))


# --- made here


def record(body: bytes, kind: int = 0) -> bytes:
    return struct.pack("<II", kind << 24 | len(body), zlib.crc32(body)) + body


def message(sequence: int, channel: str, body: bytes = b"x", timestamp_ns: int = 0) -> bytes:
    stored = pb.MsgProto(
        sequence=sequence, subject=channel, data=body, timestamp=timestamp_ns or sequence
    )
    return record(stored.SerializeToString())


def put_identity(store: Path, cluster: bytes = b"test-cluster", node: bytes = b"") -> None:
    store.mkdir(exist_ok=True)
    body = b"\x0a" + bytes([len(cluster)]) + cluster
    if node:
        body += b"\x4a" + bytes([len(node)]) + node
    (store / "server.dat").write_bytes(VERSION + record(body))
    (store / "clients.dat").write_bytes(VERSION)


def put_slice(store: Path, channel: str, number: int, messages: Iterable[bytes]) -> Path:
    """A slice and its index; the sequences are those in the messages."""
    folder = store / channel
    folder.mkdir(exist_ok=True)
    (folder / "subs.dat").touch()
    if not (folder / "subs.dat").stat().st_size:
        (folder / "subs.dat").write_bytes(VERSION)
    data, index = bytearray(VERSION), bytearray(VERSION)
    for one in messages:
        stored = pb.MsgProto.FromString(one[8:])
        entry = struct.pack("<QQqI", stored.sequence, len(data), stored.timestamp, len(one) - 8)
        index += entry + struct.pack("<I", zlib.crc32(entry))
        data += one
    path = folder / f"msgs.{number}.dat"
    path.write_bytes(data)
    path.with_suffix(".idx").write_bytes(index)
    return path


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files with content and modification time."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _record_all() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name in RECIPES:
            store = original_store(name, Path(scratch) / name)
            shutil.rmtree(RECORDED / name, ignore_errors=True)
            shutil.copytree(store, RECORDED / name)


if __name__ == "__main__":
    _record_all()
