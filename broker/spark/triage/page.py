"""The report of `triage`: groups of dead letters, the largest first, with samples of each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from broker.spark.jobs.limits import REPORT_GROUPS, REPORT_RANKS, SAMPLE_BYTES
from broker.spark.report import charts, numbers
from broker.spark.report.charts import Plot
from broker.spark.report.page import Child, Html, clip, page, section, table, tag, tiles

if TYPE_CHECKING:
    from broker.spark.triage.tasks import Found, Group, Key, Sample

_HOUR_US: Final = 3600 * 10**6
_BARS_MAX: Final = 400
_HEX_BYTES: Final = 256
_SHAPE_CHARS: Final = 400


def triage_page(found: Found, servers: str, made: datetime | None = None) -> str:
    """Build the page."""
    groups = sorted(found.groups.items(), key=lambda item: (-item[1].count, item[0]))
    letters = sum(group.count for _, group in groups)
    topics = {key.topic for key, _ in groups}
    counted = f"{numbers.of(letters, 'dead letter')} in {numbers.of(len(topics), 'topic')}"
    about = f"{counted} of {servers or 'no broker'}."
    body: list[Child] = [_tiles(found, letters)]
    if not groups:
        body.append(tag("p", "There are no dead letters."))
        return page("Dead letters", about, body, created=made)
    plots = [_hours(found.hours), _largest(groups)]
    body.append(section("Overview", tag("div", plots, class_="plots"), _overview(groups, found)))
    body.append(_back(found))
    cards = [_card(key, group, found, servers) for key, group in groups[:REPORT_GROUPS]]
    more = len(groups) - REPORT_GROUPS
    note = tag("p", f"{more:,} smaller groups are not shown.", class_="soft") if more > 0 else None
    body.append(section("Groups", cards, note))
    return page("Dead letters", about, body, created=made)


def _tiles(found: Found, letters: int) -> Html:
    pairs = [
        (numbers.count(letters), "dead letters"),
        (numbers.exact(len(found.groups)), "groups"),
        (numbers.exact(len({(key.origin, key.channel) for key in found.groups})), "origins"),
    ]
    if found.groups:
        oldest = min(group.first_us for group in found.groups.values())
        newest = max(group.last_us for group in found.groups.values())
        pairs += [(numbers.moment(oldest), "first"), (numbers.moment(newest), "last")]
    if found.holes:
        pairs.append((numbers.exact(found.holes), "seqs that could not be read"))
    return tiles(*pairs)


def _hours(hours: Mapping[int, int]) -> Html:
    """Dead letters by hour, or by day if there are too many hours."""
    first, last = min(hours), max(hours)
    step = _HOUR_US if (last - first) // _HOUR_US < _BARS_MAX else 24 * _HOUR_US
    first = first // step * step
    partitions = dict.fromkeys(range(first, last + 1, step), 0)
    for hour, count in hours.items():
        partitions[hour // step * step] += count
    text = f"Dead letters in each {'hour' if step == _HOUR_US else 'day'}."
    plot = Plot("hours", "When they died", text, numbers.count)
    return charts.bars(plot, numbers.ticks(list(partitions), step), list(partitions.values()))


def _largest(groups: list[tuple[Key, Group]]) -> Html:
    # The id is first, because groups often differ only in the shape.
    rows = [
        (
            f"{key.id}: {key.reason}, {key.origin or key.topic} / {key.channel or '-'}",
            float(group.count),
        )
        for key, group in groups[:REPORT_RANKS]
    ]
    text = "Dead letters in the largest groups, by the id of the group."
    plot = Plot("groups", "Largest groups", text, numbers.count)
    return charts.ranks(plot, rows)


def _overview(groups: list[tuple[Key, Group]], found: Found) -> Html:
    rows: list[list[Child]] = [
        [
            tag("a", tag("code", key.id), href=f"#g-{key.id}"),
            key.reason,
            key.origin or "-",
            key.channel or "-",
            tag("code", clip(key.shape, 60)),
            numbers.moment(group.first_us),
            numbers.exact(group.count),
            _sent(key, group, found),
        ]
        for key, group in groups[:REPORT_GROUPS]
    ]
    head = (
        "group",
        "reason",
        "topic",
        "channel",
        "shape",
        "first seen",
        "dead letters",
        "sent back",
    )
    caption = "A group has dead letters with the same reason, origin and shape of body."
    return table(caption, head, rows, words=6)


def _sent(key: Key, group: Group, found: Found) -> str:
    """Which part of a group was sent back, by this run or an earlier one."""
    upto = dict(found.sent.get(key.id, {}))
    if any(one.group == key.id for one in found.back):
        return "all, now"
    if not upto:
        return "-"
    done = [upto.get(broker, 0) > last for broker, (_, last) in group.spans.items()]
    started = [upto.get(broker, 0) > first for broker, (first, _) in group.spans.items()]
    return "all" if all(done) else "some" if any(started) else "-"


def _back(found: Found) -> Html | None:
    if not found.back:
        return None
    rows: list[list[Child]] = [
        [tag("code", one.group), one.server, one.topic, numbers.exact(one.count),
         "before" if one.already else f"{one.first:,} - {one.last:,}"]
        for one in found.back
    ]  # fmt: skip
    head = ("group", "broker", "topic", "dead letters", "new seqs")
    return section(
        "Sent back by this run", table("Sent to all channels of the topic.", head, rows, words=3)
    )


def _card(key: Key, group: Group, found: Found, servers: str) -> Html:
    origin = f"{key.origin} / {key.channel}" if key.origin else "of unknown origin"
    facts = [
        ("dead letters", numbers.exact(group.count)),
        ("bytes", numbers.size(group.bytes)),
        ("stored in", key.topic),
        ("first seen", f"{numbers.moment(group.first_us)} UTC"),
        ("last seen", f"{numbers.moment(group.last_us)} UTC"),
        ("most attempts", numbers.exact(group.attempts_most)),
        ("sent back", _sent(key, group, found)),
    ]
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", value, class_="name"))
        for name, value in facts
    ]
    parts: list[Child] = [
        tag("h3", tag("code", key.id), f" {key.reason}: {origin}", id=f"g-{key.id}", class_="name"),
        tag("pre", clip(key.shape, _SHAPE_CHARS)),
        tag("table", tag("tbody", rows)),
    ]
    if key.can_go_back:
        command = tag("details", tag("summary", "send it back"), tag("pre", _command(key, servers)))
        parts.append(command)
    if any(sample.body or sample.size == 0 for sample in group.samples):
        parts.append(
            tag("details", tag("summary", "samples"), [_sample(one) for one in group.samples])
        )
    return tag("article", parts, class_="card")


def _command(key: Key, servers: str) -> str:
    """The command that sends a group back, without the options for access to the brokers."""
    named = "" if key.topic.endswith(".dead") else f" --topics {shlex.quote(key.topic)}"
    at = shlex.quote(servers)
    return f"twinwire pipeline triage --servers {at}{named} --requeue {key.id}"


def _sample(sample: Sample) -> Html:
    facts = f"seq {sample.seq:,}, {sample.attempts} attempts, {numbers.size(sample.size)}"
    if sample.published_us is not None:
        facts += f", published {_moment(sample.published_us)}"
    cut = sample.size > len(sample.body)
    note = f" (the first {numbers.size(min(SAMPLE_BYTES, len(sample.body)))})" if cut else ""
    return tag(
        "div", tag("p", facts + note, class_="soft"), tag("pre", body_text(sample.body, cut))
    )


def _moment(time_us: int) -> str:
    """A time from a header, which may have any value."""
    try:
        return f"{numbers.moment(time_us)} UTC"
    except (OverflowError, ValueError, OSError):
        return "at an invalid time"


def body_text(body: bytes, cut: bool) -> str:
    """A body as text: text unchanged, JSON indented, other bytes as a hex dump."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        # A body that was cut may end within a character.
        if not cut or error.start < len(body) - 3:
            return _dump(body)
        text = body[: error.start].decode()
    if "\0" in text:
        return _dump(body)
    if not cut and text[:1] in ("{", "["):
        try:
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False)[: 2 * SAMPLE_BYTES]
        except (ValueError, RecursionError):
            pass
    return text


def _dump(body: bytes) -> str:
    lines = []
    for at in range(0, min(len(body), _HEX_BYTES), 16):
        row = body[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:04x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)
