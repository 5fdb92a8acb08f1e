"""Errors in the answers of HTTP listeners, and those that all listeners share."""

from __future__ import annotations

from typing import Final

from broker.base.values import dataclass


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error answer of a listener; the body is `{"message": code}`."""

    status: int
    code: str


# Requests that a browser sends for a page of another site.
HTTP_HOST: Final = HttpError(421, "MISDIRECTED_REQUEST: Host is not in [http] allowed_hosts")
HTTP_ORIGIN: Final = HttpError(403, "FORBIDDEN_ORIGIN: requested by a page of another site")


def http_error(error: HttpError, **parts: str) -> HttpError:
    """The error with the parts of its text filled in."""
    return HttpError(error.status, error.code.format(**parts))
