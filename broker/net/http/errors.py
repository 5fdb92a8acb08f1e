"""An error as an HTTP listener answers it, and those that every listener has."""

from __future__ import annotations

from typing import Final

from broker.base.values import dataclass


@dataclass(frozen=True, slots=True)
class HttpError:
    """An answer of a listener; the body is `{"message": code}`."""

    status: int
    code: str


# Requests that a browser sends for a page of another site.
HTTP_HOST: Final = HttpError(421, "MISDIRECTED_REQUEST: Host is none of [http] allowed_hosts")
HTTP_ORIGIN: Final = HttpError(403, "FORBIDDEN_ORIGIN: asked by a page of another site")


def http_error(error: HttpError, **parts: str) -> HttpError:
    """The error with the parts of its text filled in."""
    return HttpError(error.status, error.code.format(**parts))
