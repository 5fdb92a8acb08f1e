"""Finds the user for a client's certificate (verify_and_map).

These are compared in this order: e-mail addresses, DNS names and URIs of the certificate, then its
subject as a distinguished name (equal, then with its parts in another order), then the subject as
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from cryptography import x509

_User = TypeVar("_User")

# A distinguished name: its relative names, most specific first; each a set of type and value.
Part = frozenset[tuple[str, str]]
Name = list[Part]

_DC: Final = "0.9.2342.19200300.100.1.25"
# In the order of Go's pkix.Name; written from the last to the first.
_TYPES: Final = {
    "2.5.4.6": "C",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.17": "POSTALCODE",
    "2.5.4.3": "CN",
    "2.5.4.5": "SERIALNUMBER",
}
_SINGLE: Final = {"2.5.4.3", "2.5.4.5"}  # the last value wins
_NAMED: Final = _TYPES | {_DC: "DC"}
_SPECIAL: Final = ' "#+,;<=>\\'


def find_user(der: bytes, users: Mapping[str, _User]) -> tuple[str, _User] | None:
    """The name and the user for a certificate."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        emails, dns_names, uris = _alternatives(certificate)
        subject = certificate.subject
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None
    if not emails and not uris and not subject.rdns:
        return None
    for text in (*emails, *dns_names, *uris):
        if text and text in users:
            return text, users[text]
    name = _name_of(subject)
    if name is not None:
        match = _by_name(name, users)
        if match is not None:
            return match, users[match]
    for text in _texts(subject):
        if text and text in users:
            return text, users[text]
    return None


def _alternatives(certificate: x509.Certificate) -> tuple[list[str], list[str], list[str]]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], [], []
    return (
        names.get_values_for_type(x509.RFC822Name),
        names.get_values_for_type(x509.DNSName),
        names.get_values_for_type(x509.UniformResourceIdentifier),
    )


def _by_name(name: Name, users: Iterable[str]) -> str | None:
    reordered = None
    for user in users:
        other = parse_name(user)
        if other is None or len(other) != len(name):
            continue
        if other == name:
            return user
        if reordered is None and all(part in name for part in other):
            reordered = user
    return reordered


def _name_of(subject: x509.Name) -> Name | None:
    """The distinguished name; None if a part has a type without a short name."""
    name: Name = []
    for rdn in reversed(subject.rdns):
        part = set()
        for attribute in rdn:
            kind = _NAMED.get(attribute.oid.dotted_string)
            if kind is None or not isinstance(attribute.value, str):
                return None
            part.add((kind, attribute.value))
        name.append(frozenset(part))
    return name


def _texts(subject: x509.Name) -> Iterator[str]:
    """The subject in Go's format, first with, then without its domain components."""
    values: dict[str, list[str]] = {}
    for attribute in subject:
        oid = attribute.oid.dotted_string
        if isinstance(attribute.value, str) and oid in _NAMED:
            values.setdefault(oid, []).append(attribute.value)
    parts = []
    for oid, kind in reversed(_TYPES.items()):
        found = values.get(oid, [])
        if oid in _SINGLE:
            found = [text for text in found[-1:] if text]
        if found:
            parts.append("+".join(f"{kind}={_escape(text)}" for text in found))
    text = ",".join(parts)
    components = ",".join(f"DC={value}" for value in values.get(_DC, []))
    if components:
        yield f"{text},{components}"
    yield text


def _escape(text: str) -> str:
    out = []
    for at, char in enumerate(text):
        special = char in ',+"\\<>;' or (char == "#" and at == 0)
        if special or (char == " " and at in {0, len(text) - 1}):
            out.append("\\")
        out.append(char)
    return "".join(out)


def parse_name(text: str) -> Name | None:
    """Parse a distinguished name of RFC 4514; None if it is invalid."""
    name: Name = []
    part: set[tuple[str, str]] = set()
    for pair, end in _pairs(text):
        kind, equals, value = pair
        if not equals or not kind:
            return None
        part.add((kind.upper(), value))
        if end != "+":
            name.append(frozenset(part))
            part = set()
    return name if name and not part else None


def _pairs(text: str) -> Iterator[tuple[tuple[str, bool, str], str]]:
    """Each type, whether "=" follows, the value, and the character that ended the pair."""
    kind, equals = "", False
    word, kept = bytearray(), 0  # kept: length without trailing blanks
    at, raw = 0, text.encode("utf-8", "surrogatepass")
    while at < len(raw):
        char = chr(raw[at])
        if char == "\\":
            at += 1
            taken = _escaped(raw[at : at + 2])
            if taken is None:
                yield ("", False, ""), ""
                return
            word += taken[0]
            at += taken[1]
            kept = len(word)
            continue
        if char == "=":
            if raw[at + 1 : at + 2] == b"#":  # a value in BER
                yield ("", False, ""), ""
                return
            kind, equals, word, kept = _text(word[:kept]), True, bytearray(), 0
        elif char in ",+":
            yield (kind, equals, _text(word[:kept])), char
            kind, equals, word, kept = "", False, bytearray(), 0
        elif char != " " or word:
            word.append(raw[at])
            kept = len(word) if char != " " else kept
        at += 1
    if word:
        yield (kind, equals, _text(word[:kept])), ""


def _escaped(rest: bytes) -> tuple[bytes, int] | None:
    """Decode an escape: one special character, or two hexadecimal digits."""
    if rest and chr(rest[0]) in _SPECIAL:
        return rest[:1], 1
    try:
        return (bytes.fromhex(rest.decode("ascii")), 2) if len(rest) == 2 else None
    except ValueError:
        return None


def _text(word: bytes | bytearray) -> str:
    return word.decode("utf-8", "surrogateescape")
