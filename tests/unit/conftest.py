"""Fixtures of the unit tests."""

from support.configuration import write  # noqa: F401
