"""What `rollup` and `triage` tell their user. `{name}` is filled in."""

from __future__ import annotations

from typing import Final

SERVERS_OR_ARCHIVE: Final = "give --servers, or --archive"
NO_SUCH_GROUP: Final = "there is no group {group}: the report, or --json, has their ids"
CANNOT_GO_BACK: Final = "group {group} does not say where its letters come from ({reason})"
ORIGIN_GONE: Final = (
    "group {group} comes from topic {topic!r}, which broker {partition} does not have: "
    "make that topic first if the letters are to go there"
)
NO_WRITER: Final = "what was sent back before cannot be asked for: {text}"
STILL_COMMITTING: Final = "the broker is still sending group {group} back: try again in a moment"
