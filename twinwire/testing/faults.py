"""Faults that a test switches on in its broker, and off again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Final

from twinwire.testing.process import CREATE, WRITE

Ask = Callable[[dict[str, Any]], Any]
SLOW_S_MAX: Final = 3600.0


class Fault:
    """An active fault. `end()` or the end of a `with` block ends it."""

    def __init__(
        self, name: str, errors: dict[int, int], delay_s: float, end: Callable[[Fault], None]
    ) -> None:
        """For `Faults`, which creates it; `errors`: errno by kind of file call."""
        self._name = name
        self._errors = errors
        self._delay_s = delay_s
        self._end = end

    @property
    def name(self) -> str:
        """The method of `Faults` that started it."""
        return self._name

    def end(self) -> None:
        """End the fault, and wait until the broker is healthy. A second call does nothing."""
        self._end(self)

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Faults:
    """The faults of one broker: `with broker.faults.full_disk(): ...`.

    Without `with`, a fault lasts until `end()`, `heal()` or the end of the process; a restarted
    broker has none. Several faults may be active at the same time.
    """

    def __init__(self, ask: Ask, healthy: Callable[[], None]) -> None:
        """For brokers, which create it."""
        self._ask = ask
        self._healthy = healthy
        self._active: list[Fault] = []

    @property
    def active(self) -> tuple[str, ...]:
        """The names of the active faults."""
        return tuple(fault.name for fault in self._active)

    def full_disk(self) -> Fault:
        """No message can be stored and no channel created: every write fails with ENOSPC.

        NSQ publishers receive E_PUB_FAILED (HTTP 503), NATS Streaming publishers an error in the
        ack; topics are created, but stay empty; consumers of existing channels receive the stored
        messages, and `/healthz` answers 503.
        """
        return self._begin("full_disk", {WRITE: errno.ENOSPC, CREATE: errno.ENOSPC}, 0)

    def refuse_publishes(self) -> Fault:
        """Every write fails with EIO; publishers receive the same errors as with `full_disk`.

        `/healthz` and the log report a broken disk instead of a full one.
        """
        return self._begin("refuse_publishes", {WRITE: errno.EIO}, 0)

    def slow_disk(self, seconds: float) -> Fault:
        """Delay each write and each sync by `seconds`.

        With `sync = "always"` an acknowledgement waits for both, by default only for the write.
        """
        if not 0 < seconds <= SLOW_S_MAX:
            raise ValueError(f"slow_disk() seconds must be above 0 and at most {SLOW_S_MAX:.0f}")
        return self._begin("slow_disk", {}, seconds)

    def drop_connections(self) -> int:
        """Close every TCP connection of a client, and return their number.

        The listeners stay open: clients can connect again at once.
        """
        return int(self._ask({"do": "drop_connections"}))

    def heal(self) -> None:
        """End all faults, and wait until the broker is healthy."""
        if self._active:
            self._active.clear()
            self._apply()
            self._healthy()

    def _clear(self) -> None:
        """Called when the process with the faults has ended."""
        self._active.clear()

    def _begin(self, name: str, errors: dict[int, int], delay_s: float) -> Fault:
        fault = Fault(name, errors, delay_s, self._end)
        self._active.append(fault)
        try:
            self._apply()
        except BaseException:
            self._active.remove(fault)
            raise
        return fault

    def _end(self, fault: Fault) -> None:
        if fault not in self._active:
            return
        self._active.remove(fault)
        self._apply()
        if not any(other._errors for other in self._active):
            self._healthy()

    def _apply(self) -> None:
        errors = {str(kind): code for fault in self._active for kind, code in fault._errors.items()}
        delay_s = sum(fault._delay_s for fault in self._active)
        self._ask({"do": "faults", "errors": errors, "delay_s": delay_s})
