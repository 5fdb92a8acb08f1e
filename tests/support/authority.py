"""Certificates for tests: a CA, and what it signs."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOCAL: Sequence[x509.GeneralName] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
)


class Pair(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its own is `file`, signed by itself or by another authority."""

    def __init__(
        self, folder: Path, name: str = "authority", *, signed_by: Authority | None = None
    ) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        signed = (signed_by or self)._sign(self.name, self.key.public_key(), is_authority=True)
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        is_authority: bool = False,
        days: int = 2,
        names: Sequence[x509.GeneralName] = LOCAL,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        ours = self.key.public_key()
        # Python 3.13 refuses certificates without the identifiers and without the usage of a CA.
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=10))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours), critical=False)
            .add_extension(_usage(is_authority=is_authority), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def issue(
        self,
        name: str,
        *,
        days: int = 2,
        names: Sequence[x509.GeneralName] = LOCAL,
        with_chain: bool = False,
    ) -> Pair:
        """A certificate for localhost with this common name; negative days: expired.

        With `with_chain` the CA's own certificate follows it in the file.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._sign(subject, key.public_key(), days=days, names=names)
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pem = signed.public_bytes(serialization.Encoding.PEM)
        pair.certificate.write_bytes(pem + (self.file.read_bytes() if with_chain else b""))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        """The TLS context of a client that trusts this authority; `pair`: its certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
