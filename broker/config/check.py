"""What goes beyond a single value: values that contradict each other, and how mistakes are put."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

from broker.base.settings import duration_text, size_text
from broker.bulk import config as config_bulk
from broker.protocols.stan.section import contradictions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from broker.base.settings import Address
    from broker.config.load import Config


class Conflict(NamedTuple):
    """Two keys that cannot both hold."""

    keys: tuple[tuple[str, str], tuple[str, str]]  # (section, key)
    reason: str


# Left must not exceed right.
_DURATIONS = (
    ("nsq.msg_timeout", "nsq.max_msg_timeout"),
    ("nsq.min_output_buffer_timeout", "nsq.output_buffer_timeout"),
    ("nsq.output_buffer_timeout", "nsq.max_output_buffer_timeout"),
)
_SIZES = (
    ("nats.max_payload", "nats.max_pending"),
    ("nsq.max_msg_size", "nsq.max_body_size"),
    # What does not fit is never appended: its publisher would wait for ever.
    ("nsq.max_body_size", "storage.append_buffer_max"),
    ("nats.max_payload", "storage.append_buffer_max"),
    ("nsq.max_msg_size", "storage.memory_topic_max"),
)
_DOORS = (
    ("nats", "listen"),
    ("monitor", "listen"),
    ("nsq", "listen"),
    ("nsq", "http"),
    ("nsq", "https"),
    ("nsqlookupd", "listen"),
    ("nsqlookupd", "http"),
    ("bulk", "listen"),
)


def conflicts(config: Config) -> Iterator[Conflict]:
    """Every pair of values that contradict each other."""
    yield from _too_large(config, _DURATIONS, "_ns", duration_text)
    yield from _too_large(config, _SIZES, "", size_text)

    taken: dict[Address, tuple[str, str]] = {}
    for section, key in _DOORS:
        address = getattr(getattr(config, section), key)
        closed = section == "nsqlookupd" and not config.nsqlookupd.enabled
        if address is None or address.port == 0 or closed:
            continue
        if address in taken:
            other = taken[address]
            reason = f"{address} is the address of {'.'.join(other)} too"
            yield Conflict(((section, key), other), reason)
        taken[address] = (section, key)
    if config.nats.listen is None and config.nsq.listen is None and config.nsq.http is None:
        reason = "no door for clients is left open: give nats.listen, nsq.listen or nsq.http"
        yield Conflict((("nats", "listen"), ("nsq", "listen")), reason)
    if bool(config.monitor.user) != bool(config.monitor.password):
        reason = "a user and a password go together: give both monitor.user and monitor.password"
        yield Conflict((("monitor", "user"), ("monitor", "password")), reason)
    yield from _certificates(config)
    for wrong in contradictions(config.stan):
        yield Conflict((("stan", wrong.key), ("stan", "enabled")), wrong.reason)
    for clash in config_bulk.contradictions(config.bulk):
        yield Conflict((("bulk", clash.key), ("bulk", clash.other)), clash.reason)


def _certificates(config: Config) -> Iterator[Conflict]:
    nsq = config.nsq
    if bool(nsq.tls_cert) != bool(nsq.tls_key):
        reason = "a certificate and its key go together: give both nsq.tls_cert and nsq.tls_key"
        yield Conflict((("nsq", "tls_cert"), ("nsq", "tls_key")), reason)
    if nsq.tls_cert:
        return
    for key, asked in (
        ("tls_required", nsq.tls_required != "false"),
        ("tls_client_auth_policy", nsq.tls_client_auth_policy),
        ("https", nsq.https is not None),
    ):
        if asked:
            reason = "needs a certificate: give nsq.tls_cert and nsq.tls_key"
            yield Conflict((("nsq", key), ("nsq", "tls_cert")), reason)


def _too_large(
    config: Config,
    pairs: Iterable[tuple[str, str]],
    suffix: str,
    write: Callable[[int], str],
) -> Iterator[Conflict]:
    for low, high in pairs:
        one, other = _split(low), _split(high)
        value = getattr(getattr(config, one[0]), one[1] + suffix)
        limit = getattr(getattr(config, other[0]), other[1] + suffix)
        if value > limit:
            reason = f"{low} ({write(value)}) must not exceed {high} ({write(limit)})"
            yield Conflict((one, other), reason)


def _split(name: str) -> tuple[str, str]:
    section, _, key = name.partition(".")
    return section, key


def near(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name, or nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def syntax_error(text: str, source: str) -> tuple[str, str]:
    """Place (line:column) and reason, from what tomllib says about a text."""
    match = re.fullmatch(
        r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", text, re.DOTALL
    )
    if match is None:
        return "1", text
    if match[2] is None:
        return str(len(source.splitlines()) or 1), f"{match[1]} at the end of the file"
    return f"{match[2]}:{match[3]}", match[1]
