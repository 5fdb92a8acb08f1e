"""IDENTIFY: the properties of a client, its requests, and the server's answer.

The body is decoded as Go's encoding/json decodes it into a struct: keys match in any case, the last
one wins, null leaves a field unchanged, unknown keys are ignored, a wrong type is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from broker.base.errors import WireError
from broker.base.units import MS
from broker.base.values import NamedTuple, dataclass
from broker.protocols.nsq import errors, limits
from broker.protocols.nsq.errors import nsq_text

if TYPE_CHECKING:
    from broker.protocols.nsq.config import NsqConfig


class Refused(Exception):  # noqa: N818 - it becomes a response
    """Raised to end the connection with this error payload."""

    def __init__(self, error: WireError, **parts: str | int) -> None:
        self.payload = nsq_text(error, **parts)
        super().__init__(self.payload)


INT: Final = 63  # bits of a Go int, and of the two kinds of field that are smaller
_INT32: Final = 31
# Field of the struct -> bits of an integer, or the field's type.
_FIELDS: Final[dict[str, int | type]] = {
    "client_id": str,
    "hostname": str,
    "heartbeat_interval": INT,
    "output_buffer_size": INT,
    "output_buffer_timeout": INT,
    "feature_negotiation": bool,
    "tls_v1": bool,
    "deflate": bool,
    "deflate_level": INT,
    "snappy": bool,
    "sample_rate": _INT32,
    "user_agent": str,
    "msg_timeout": INT,
    "topology_region": str,
    "topology_zone": str,
}
# Go treats these two as ASCII letters when it compares keys.
_FOLDED: Final = str.maketrans({"\u017f": "s", "\u212a": "k"})


def _no_constant(name: str) -> None:
    raise ValueError(name)


def parse_json(body: bytes) -> object:
    """Decode JSON by Go's rules: invalid UTF-8 and lone surrogates are replaced. ValueError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    try:
        value = json.loads(body.decode("utf-8", "replace"), parse_constant=_no_constant)
        text = json.dumps(value, ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("too deep") from None


def folded(key: str) -> str:
    """A key of a JSON object in the form in which Go compares it with a field name."""
    return key.translate(_FOLDED).lower()


def _fits(value: object, kind: int | type) -> bool:
    if isinstance(kind, type):
        return isinstance(value, kind)
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -(1 << kind) <= value < (1 << kind)
    )


def read_fields(body: bytes, fields: Mapping[str, int | type] = _FIELDS) -> dict[str, Any]:
    """The `fields` that the body sets; Refused if the body is invalid."""
    try:
        document = parse_json(body)
    except ValueError:
        raise Refused(errors.NSQ_IDENTIFY_JSON) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise Refused(errors.NSQ_IDENTIFY_JSON)
    found: dict[str, Any] = {}
    for key, value in document.items():
        name = folded(key)
        kind = fields.get(name)
        if kind is None or value is None:
            continue
        if not _fits(value, kind):
            raise Refused(errors.NSQ_IDENTIFY_JSON)
        found[name] = value
    return found


def _chosen(what: str, asked: int, default_ns: int, low_ns: int, high_ns: int) -> int:
    """Convert a requested time from ms to ns: 0 = default, -1 = off, otherwise within bounds."""
    if asked == 0:
        return default_ns
    if asked == -1:
        return 0
    if not low_ns <= asked * MS <= high_ns:
        raise Refused(errors.NSQ_IDENTIFY_VALUE, what=what, number=asked)
    return asked * MS


def _buffer_size(asked: int, current: int, config: NsqConfig) -> int:
    if asked == 0:
        return current
    if asked == -1:
        return 1
    if not limits.NSQ_OUTPUT_BUFFER_SIZE_MIN <= asked <= config.max_output_buffer_size:
        raise Refused(errors.NSQ_IDENTIFY_VALUE, what="output buffer size", number=asked)
    return asked


class Offer(NamedTuple):
    """The granted part of the upgrades that a client requested."""

    tls: bool = False
    compression: str = ""  # snappy, deflate, or none


_NOTHING: Final = Offer()


@dataclass(frozen=True, slots=True)
class Identity:
    """The properties of one client, before and after IDENTIFY."""

    client_id: str
    hostname: str
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    negotiates: bool = False
    heartbeat_interval_ns: int = limits.NSQ_HEARTBEAT_INTERVAL  # 0 = off
    output_buffer_size: int = limits.NSQ_OUTPUT_BUFFER_SIZE
    output_buffer_timeout_ns: int | None = None  # None: the server's
    msg_timeout_ns: int | None = None  # None: the server's
    sample_rate: int = 0  # 0 = everything
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0  # 0 or less: the default

    @classmethod
    def before(cls, address: str) -> Identity:
        """The properties that nsqd shows before IDENTIFY."""
        return cls(client_id=address, hostname=address)

    @classmethod
    def read(cls, body: bytes, config: NsqConfig, now: Identity) -> Identity:
        """The client after an IDENTIFY with this body; `now`: before it. Refused if invalid."""
        if len(body) > (most := limits.NSQ_IDENTIFY_BODY_MAX):
            raise Refused(errors.NSQ_BODY_BIG, command="IDENTIFY", number=len(body), most=most)
        asked = read_fields(body)
        heartbeat_ns = _chosen(
            "heartbeat interval",
            asked.get("heartbeat_interval", 0),
            now.heartbeat_interval_ns,
            limits.NSQ_HEARTBEAT_INTERVAL_MIN,
            config.max_heartbeat_interval_ns,
        )
        flush_ns = _chosen(
            "output buffer timeout",
            asked.get("output_buffer_timeout", 0),
            now.flush_ns(config),
            config.min_output_buffer_timeout_ns,
            config.max_output_buffer_timeout_ns,
        )
        size = _buffer_size(asked.get("output_buffer_size", 0), now.output_buffer_size, config)
        rate = asked.get("sample_rate", 0)
        if not 0 <= rate <= limits.NSQ_SAMPLE_RATE_MAX:
            raise Refused(errors.NSQ_IDENTIFY_VALUE, what="sample rate", number=rate)
        wait = asked.get("msg_timeout", 0)
        if wait and not (limits.NSQ_MSG_TIMEOUT_MIN <= wait * MS <= config.max_msg_timeout_ns):
            raise Refused(errors.NSQ_IDENTIFY_VALUE, what="msg timeout", number=wait)
        return cls(
            client_id=asked.get("client_id", ""),
            hostname=asked.get("hostname", ""),
            user_agent=asked.get("user_agent", ""),
            topology_region=asked.get("topology_region", ""),
            topology_zone=asked.get("topology_zone", ""),
            negotiates=asked.get("feature_negotiation", False),
            heartbeat_interval_ns=heartbeat_ns,
            output_buffer_size=size,
            output_buffer_timeout_ns=0 if asked.get("output_buffer_size") == -1 else flush_ns,
            msg_timeout_ns=wait * MS if wait else now.wait_ns(config),
            sample_rate=rate,
            tls_v1=asked.get("tls_v1", False),
            snappy=asked.get("snappy", False),
            deflate=asked.get("deflate", False),
            deflate_level=asked.get("deflate_level", 0),
        )

    def flush_ns(self, config: NsqConfig) -> int:
        """The output buffer timeout in force; 0 = none."""
        timeout = self.output_buffer_timeout_ns
        return config.output_buffer_timeout_ns if timeout is None else timeout

    def wait_ns(self, config: NsqConfig) -> int:
        """The message timeout in force."""
        timeout = self.msg_timeout_ns
        return config.msg_timeout_ns if timeout is None else timeout

    def nearness(self, config: NsqConfig) -> int:
        """2 in the server's zone, 1 in its region, else 0; always 0 without the experiment."""
        if limits.NSQ_TOPOLOGY not in config.enable_experiment:
            return 0
        if self.topology_zone and self.topology_zone == config.topology_zone:
            return 2
        return int(bool(self.topology_region) and self.topology_region == config.topology_region)

    def level(self, config: NsqConfig) -> int:
        """The deflate level in force."""
        asked = self.deflate_level if self.deflate and config.deflate else 0
        return min(asked if asked > 0 else limits.NSQ_DEFLATE_LEVEL, config.max_deflate_level)

    def offer(self, config: NsqConfig, tls: bool, compression: bool) -> Offer:
        """The upgrades to grant; `tls`, `compression`: whether each of them can begin now."""
        if not self.negotiates:
            return Offer()
        snappy = self.snappy and config.snappy
        deflate = self.deflate and config.deflate
        if snappy and deflate:
            raise Refused(errors.NSQ_TWO_COMPRESSIONS)
        chosen = "snappy" if snappy else "deflate" if deflate else ""
        return Offer(self.tls_v1 and tls, chosen if compression else "")

    def response(
        self, config: NsqConfig, offer: Offer = _NOTHING, auth_required: bool = False
    ) -> bytes:
        """The response to IDENTIFY."""
        if not self.negotiates:
            return b"OK"
        return orjson.dumps(
            {
                "max_rdy_count": config.max_rdy_count,
                "version": limits.NSQ_VERSION,
                "max_msg_timeout": config.max_msg_timeout_ns // MS,
                "msg_timeout": self.wait_ns(config) // MS,
                "tls_v1": offer.tls,
                "deflate": offer.compression == "deflate",
                "deflate_level": self.level(config),
                "max_deflate_level": config.max_deflate_level,
                "snappy": offer.compression == "snappy",
                "sample_rate": self.sample_rate,
                "auth_required": auth_required,
                "output_buffer_size": self.output_buffer_size,
                "output_buffer_timeout": self.flush_ns(config) // MS,
                "topology_region": config.topology_region,
                "topology_zone": config.topology_zone,
            }
        )
