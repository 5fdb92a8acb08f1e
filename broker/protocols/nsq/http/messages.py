"""Messages as the /v1/ pages show them: one JSON object each."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from broker.base.units import SECOND
from broker.engine.cursor.peek import IN_FLIGHT
from broker.protocols.nsq import limits
from broker.protocols.nsq.session import NsqSession

if TYPE_CHECKING:
    from broker.engine.cursor.peek import Peek

_HEADERS = b"NATS/1.0"


def moment(time_ns: int) -> str:
    """RFC 3339 in UTC with all nine digits."""
    seconds, rest = divmod(time_ns, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def headers_of(raw: bytes) -> dict[str, list[str]]:
    """Header names with their values, in the order they stand in."""
    found: dict[str, list[str]] = {}
    lines = raw.decode("utf-8", "replace").split("\r\n")
    for line in lines[1:] if raw.startswith(_HEADERS) else lines:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), []).append(value.strip())
    return found


def _holder(sink: object) -> dict[str, str] | None:
    if not isinstance(sink, NsqSession):
        return None
    return {
        "client_id": sink.identity.client_id,
        "hostname": sink.identity.hostname,
        "remote_address": sink.remote_address,
    }


def _body(body: bytes, form: str) -> dict[str, object]:
    if form == "none":
        return {}
    if form == "text":
        try:
            return {"body": body.decode(), "encoding": "text"}
        except UnicodeDecodeError:
            pass  # shown as any bytes are
    return {"body": base64.b64encode(body).decode(), "encoding": "base64"}


def rows_of(page: Peek) -> list[dict[str, Any]]:
    """What is known of each message before its bytes are read; on the loop."""
    rows = []
    for seq, state, attempts, due_ns, since_ns, sink in page.found:
        row: dict[str, Any] = {"seq": seq}
        if state is not None:
            row |= {"state": state, "attempts": attempts}
        if state == IN_FLIGHT:
            row |= {
                "in_flight_since": moment(since_ns),
                "timeout_at": moment(due_ns),
                "client": _holder(sink),
            }
        elif due_ns:
            row["deferred_until"] = moment(due_ns)
        rows.append(row)
    return rows


def fill(rows: list[dict[str, Any]], page: Peek, form: str) -> list[dict[str, Any]]:
    """Read the bytes and complete the rows; on any thread."""
    records = page.read(limits.V1_PEEK_BYTES_MAX)
    shown = {row[0] for row in page.found}
    complete = []
    for row in rows:
        if row["seq"] not in shown:
            continue
        record = records.get(row["seq"])
        if record is None:
            complete.append({**row, "unreadable": True})
            continue
        timestamp_ns, not_before_ns, subject, reply, headers, body, addressed = record
        if addressed and page.reader not in ("", reply.decode("utf-8", "replace")):
            continue  # for another channel alone
        if not_before_ns and row.get("attempts", 0) == 0:
            row.setdefault("deferred_until", moment(not_before_ns))
        row |= {
            "timestamp": moment(timestamp_ns),
            "subject": subject.decode("utf-8", "replace"),
            "headers": headers_of(headers),
            "body_bytes": len(body),
            **_body(body, form),
        }
        if reply and not addressed:
            row["reply"] = reply.decode("utf-8", "replace")
        complete.append(row)
    return complete
