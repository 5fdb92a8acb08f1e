"""TLS contexts: certificates, and features of OpenSSL that Python's ssl does not offer.

A Python context object begins with a pointer to that of OpenSSL; this is verified as far as
possible before anything is changed there. With a Python that stores it elsewhere the functions
raise TlsError, or return False if the feature is optional.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterable

_ssl_module = __import__("_ssl")

_VERIFY_PEER: Final = 1
_VERIFY_FAIL_IF_NO_PEER_CERT: Final = 2
_SET_SESSION_CACHE: Final = 44  # SSL_CTRL_SET_SESS_CACHE_MODE
_SET_GROUPS_LIST: Final = 92  # SSL_CTRL_SET_GROUPS_LIST

# Parts of OpenSSL's names of ciphers up to TLS 1.2, and of the IANA names, which Go uses.
_CIPHER_PARTS: Final = {
    "AES128": "AES_128",
    "AES256": "AES_256",
    "CHACHA20": "CHACHA20",
    "POLY1305": "POLY1305",
}


class TlsError(Exception):
    """Certificates cannot be used; the text has the file and the reason."""


class _EncryptedKeyError(ValueError):
    pass


def _no_password() -> str:
    raise _EncryptedKeyError("the key is encrypted")  # there is no password prompt


def load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load the certificate of a context; the file may contain the chain. TlsError."""
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as problem:
        reason = _missing(certificate, key) or _reason(problem)
        raise TlsError(f"certificate {certificate}, key {key}: {reason}") from None


def load_authorities(context: ssl.SSLContext, file: str) -> None:
    """Load the authorities that are trusted for the peer's certificate. TlsError."""
    try:
        context.load_verify_locations(file)
    except (OSError, ValueError) as problem:
        raise TlsError(f"authorities {file}: {_reason(problem)}") from None
    if context.protocol is ssl.PROTOCOL_TLS_SERVER:
        _name_authorities(context, file)


def _name_authorities(context: ssl.SSLContext, file: str) -> None:
    """Send the names of the accepted authorities to clients; those without a matching certificate
    send none, as with the originals. Skipped if this Python does not allow it."""
    import ctypes

    reached = _reach(context)
    if reached is None:
        return
    library, inner = reached
    load = library.SSL_load_client_CA_file
    load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    library.SSL_CTX_set_client_CA_list.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.SSL_CTX_set_client_CA_list(inner, load(os.fsencode(file)))  # the context owns it


def _missing(certificate: str, key: str) -> str:
    """What these files lack, about which OpenSSL only says "PEM lib"."""
    for file, label, wanted in (
        (certificate, b"CERTIFICATE-----", "certificate"),
        (key, b"PRIVATE KEY-----", "private key"),
    ):
        with suppress(OSError, ValueError):  # a path with a zero byte
            if label not in Path(file).read_bytes():
                return f"{file} has no {wanted} in PEM"
    return ""


def _reason(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or str(problem)).replace("_", " ").lower()
    return getattr(problem, "strerror", None) or str(problem)


@cache  # never freed: contexts refer to it
def _take_it() -> Any:
    """A callback that finds every certificate valid."""
    import ctypes

    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(lambda _good, _store: 1)


def accept_any_certificate(context: ssl.SSLContext) -> None:
    """Accept any client certificate: its signature is not verified. TlsError."""
    reached = _reach(context)
    if reached is None:
        raise TlsError(
            "this Python does not allow a server to accept unverified client certificates"
        )
    library, inner = reached
    library.SSL_CTX_set_verify(inner, _mode(context), _take_it())


def set_groups(context: ssl.SSLContext, names: Iterable[str]) -> bool:
    """Set the key exchange groups, in this order, with OpenSSL's names."""
    return bool(_control(context, _SET_GROUPS_LIST, ":".join(names).encode()))


def keep_no_sessions(context: ssl.SSLContext) -> bool:
    """Disable the session cache of TLS 1.2, which takes memory; tickets are not affected."""
    return _control(context, _SET_SESSION_CACHE, None) is not None


def _control(context: ssl.SSLContext, number: int, text: bytes | None) -> int | None:
    import ctypes

    reached = _reach(context)
    if reached is None:
        return None
    library, inner = reached
    library.SSL_CTX_ctrl.restype = ctypes.c_long
    library.SSL_CTX_ctrl.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p]
    return int(library.SSL_CTX_ctrl(inner, number, 0, text))


def set_suites(context: ssl.SSLContext, names: Iterable[str]) -> bool:
    """Set the ciphers of TLS 1.3, in this order; those up to 1.2 are unchanged."""
    import ctypes

    reached = _reach(context)
    if reached is None:
        return False
    library, inner = reached
    library.SSL_CTX_set_ciphersuites.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return bool(library.SSL_CTX_set_ciphersuites(inner, ":".join(names).encode()))


def _mode(context: ssl.SSLContext) -> int:
    if context.verify_mode is ssl.CERT_NONE:
        return 0
    required = context.verify_mode is ssl.CERT_REQUIRED
    return _VERIFY_PEER | (_VERIFY_FAIL_IF_NO_PEER_CERT if required else 0)


def _reach(context: ssl.SSLContext) -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """The library, and its context object; None: it is not at the expected address."""
    import ctypes

    try:
        library = ctypes.CDLL(_ssl_module.__file__)
        get_options = library.SSL_CTX_get_options
        get_mode = library.SSL_CTX_get_verify_mode
    except (AttributeError, OSError):
        return None
    inner = ctypes.c_void_p(ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value)
    get_options.restype = ctypes.c_uint64
    known = (get_mode(inner), get_options(inner))
    if known != (_mode(context), int(context.options) & (1 << 64) - 1):
        return None
    return library, inner


def version_name(link: ssl.SSLObject) -> str:
    """The TLS version as nsqd writes it: TLS1.3."""
    version = (link.version() or "").replace("TLSv", "TLS")
    return "TLS1.0" if version == "TLS1" else version


def cipher_name(link: ssl.SSLObject) -> str:
    """The IANA name of the cipher in use, which Go uses too."""
    cipher = link.cipher()
    return iana_name(cipher[0]) if cipher else ""


def iana_name(name: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 for ECDHE-RSA-AES128-GCM-SHA256."""
    if name.startswith("TLS_"):
        return name
    exchange: list[str] = []
    rest: list[str] = []
    for part in name.split("-"):
        if rest or part in _CIPHER_PARTS:
            rest.append(_CIPHER_PARTS.get(part, part))
        else:
            exchange.append(part)
    if rest[-1] == "POLY1305":
        rest.append("SHA256")
    elif len(rest) == 2 and rest[0].startswith("AES"):  # AES_128 and a digest: the mode is CBC
        rest.insert(1, "CBC")
    return f"TLS_{'_'.join(exchange) or 'RSA'}_WITH_{'_'.join(rest)}"


def shown_behind(link: ssl.SSLObject) -> tuple[bytes, ...]:
    """The certificates that the client sent after its own; none if this Python cannot report
    them."""
    if hasattr(link, "get_unverified_chain"):  # since Python 3.13
        chain: list[bytes] = link.get_unverified_chain()
        return tuple(chain[1:])
    try:
        known = link._sslobj.get_unverified_chain() or ()  # type: ignore[attr-defined]
    except AttributeError:
        return ()
    return tuple(ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in known[1:])
