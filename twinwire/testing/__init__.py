"""A broker for tests: a separate process on free ports, with its data in a temporary folder.

    from twinwire.testing import Broker

    with Broker() as broker:  # or: async with
        client = await nats.connect(broker.nats_url)

pytest has the fixtures `twinwire_broker` and others as soon as Twinwire is installed. In
signatures, `Sections` is a mapping of sections to mappings of keys.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinwire.testing.broker import Broker, BrokerError
    from twinwire.testing.faults import Fault, Faults

# pytest imports `plugin` in every run, and each broker process imports `process`. Neither needs the
# other modules, so these are imported when they are used.
_MODULES = {"Broker": "broker", "BrokerError": "broker", "Fault": "faults", "Faults": "faults"}

__all__ = ["Broker", "BrokerError", "Fault", "Faults"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"twinwire.testing.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
