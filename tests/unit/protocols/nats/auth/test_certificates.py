"""Which user a certificate stands for."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

from broker.protocols.nats.auth.certificates import find_user, parse_name

DC = ObjectIdentifier("0.9.2342.19200300.100.1.25")
Rdn = list[tuple[ObjectIdentifier, str]]
KEY = ec.generate_private_key(ec.SECP256R1())


def make(*rdns: Rdn, names: list[x509.GeneralName] | None = None) -> bytes:
    subject = x509.Name(
        [
            x509.RelativeDistinguishedName(x509.NameAttribute(oid, text) for oid, text in rdn)
            for rdn in rdns
        ]
    )
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


def found(der: bytes, *users: str) -> str | None:
    match = find_user(der, dict.fromkeys(users, 1))
    return None if match is None else match[0]


CN, O, OU, C, ST, L = (  # noqa: E741
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.COUNTRY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME,
    NameOID.LOCALITY_NAME,
)
PERSON = ([(C, "DE")], [(O, "ACME")], [(OU, "eng")], [(CN, "bob")])


def test_alternative_names_come_first() -> None:
    names = [
        x509.UniformResourceIdentifier("spiffe://x/bob"),
        x509.DNSName("bob.example"),
        x509.RFC822Name("bob@example.org"),
        x509.RFC822Name("second@example.org"),
    ]
    der = make(*PERSON, names=names)
    assert found(der, "bob.example", "spiffe://x/bob", "bob@example.org") == "bob@example.org"
    assert found(der, "second@example.org", "bob.example") == "second@example.org"
    assert found(der, "bob.example", "spiffe://x/bob") == "bob.example"
    assert found(der, "spiffe://x/bob", "CN=bob,OU=eng,O=ACME,C=DE") == "spiffe://x/bob"
    assert found(der, "CN=bob,OU=eng,O=ACME,C=DE") == "CN=bob,OU=eng,O=ACME,C=DE"
    assert found(der, "bob", "") is None


def test_a_dns_name_alone_is_not_enough() -> None:
    """As the original: without a subject, e-mail address or URI nothing is looked at."""
    der = make(names=[x509.DNSName("bob.example")])
    assert found(der, "bob.example") is None
    der = make(names=[x509.DNSName("bob.example"), x509.RFC822Name("x@y")])
    assert found(der, "bob.example") == "bob.example"


@pytest.mark.parametrize(
    "user",
    [
        "CN=bob,OU=eng,O=ACME,C=DE",
        "cn=bob, ou=eng,  o=ACME,c=DE",
        "CN=bob,O=ACME,OU=eng,C=DE",  # in another order
        "C=DE,O=ACME,OU=eng,CN=bob",
        "CN=\\62ob,OU=eng,O=ACME,C=DE",
    ],
)
def test_subjects(user: str) -> None:
    assert found(make(*PERSON), user) == user


@pytest.mark.parametrize(
    "user",
    [
        "CN=bob",
        "CN=Bob,OU=eng,O=ACME,C=DE",
        "CN=bob,OU=eng,O=ACME,C=DE,L=x",
        "CN=bob,OU=eng,O=ACME+C=DE",
        "CN=bob,OU=eng,O=ACME,ST=DE",
        "bob",
        "",
    ],
)
def test_other_subjects(user: str) -> None:
    assert found(make(*PERSON), user) is None


def test_the_equal_name_comes_before_the_reordered() -> None:
    equal, other = "CN=bob,OU=eng,O=ACME,C=DE", "C=DE,O=ACME,OU=eng,CN=bob"
    assert found(make(*PERSON), other, equal) == equal


def test_domain_components() -> None:
    der = make([(DC, "org")], [(DC, "acme")], [(O, "ACME")], [(CN, "bob")])
    assert found(der, "CN=bob,O=ACME,DC=acme,DC=org") == "CN=bob,O=ACME,DC=acme,DC=org"
    # the text in the order of the certificate, as Go gives it
    assert found(der, "CN=bob,O=ACME,DC=org,DC=acme") == "CN=bob,O=ACME,DC=org,DC=acme"


def test_several_values_in_one_part() -> None:
    der = make([(O, "ACME")], [(CN, "bob"), (OU, "eng")])
    assert found(der, "CN=bob+OU=eng,O=ACME") == "CN=bob+OU=eng,O=ACME"
    assert found(der, "OU=eng+CN=bob,O=ACME") == "OU=eng+CN=bob,O=ACME"
    assert found(der, "CN=bob,OU=eng,O=ACME") == "CN=bob,OU=eng,O=ACME"  # as Go writes it


def test_a_part_without_a_short_name() -> None:
    der = make([(NameOID.TITLE, "Dr")], [(CN, "bob")])
    assert found(der, "CN=bob") == "CN=bob"


def test_special_letters_are_escaped() -> None:
    der = make([(O, 'A, "B"')], [(CN, "#bob ")])
    assert found(der, 'CN=\\#bob\\ ,O=A\\, \\"B\\"') == 'CN=\\#bob\\ ,O=A\\, \\"B\\"'


def test_no_certificate() -> None:
    assert found(b"", "bob") is None
    assert found(b"\x30\x03\x02\x01\x01", "bob") is None


@pytest.mark.parametrize(
    "text", ["", "x", "=x", "CN=#04", "CN=a\\", "CN=a\\g", "CN=a\\zz", "CN=a,b", ",", "CN=a+"]
)
def test_no_names(text: str) -> None:
    assert parse_name(text) is None


def test_names() -> None:
    assert parse_name("cn=a b ,O= c") == [frozenset({("CN", "a b")}), frozenset({("O", "c")})]
    assert parse_name("CN=a\\2c\\20b") == [frozenset({("CN", "a, b")})]
    assert parse_name("CN=a\\ ") == [frozenset({("CN", "a ")})]
    assert parse_name("CN=a,") == [frozenset({("CN", "a")})]
    assert parse_name("CN=\\c3\\a4") == [frozenset({("CN", "ä")})]
