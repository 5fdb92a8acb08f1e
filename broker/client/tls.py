"""The TLS context of a client, in a separate module because both clients need it."""

from __future__ import annotations

import ssl


def client_context(
    ca_file: str | None, cert_file: str | None, key_file: str | None, *, insecure: bool
) -> ssl.SSLContext:
    """The context for these files in PEM. OSError: they cannot be used; its `filename` is set if a
    file cannot be read. `insecure`: accept any certificate."""
    for path in (ca_file, cert_file, key_file):
        if path is not None:
            open(path, "rb").close()  # noqa: PTH123  errors of OpenSSL do not name the file
    context = ssl.create_default_context(cafile=ca_file)
    # Self-made certificates often lack fields that only the check of Python 3.13 requires.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
