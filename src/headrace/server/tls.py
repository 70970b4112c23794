"""TLS of a listener: the context of its options, which a reload replaces, and the names in client certificates."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import Any

from headrace.server.config.options import TlsOptions
from headrace.server.config.problems import ConfigError

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
    "postalCode": "POSTALCODE",
    "serialNumber": "SERIALNUMBER",
}
_NOT_TLS = ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE")
"""What OpenSSL says of first bytes that are no TLS."""
_SPECIAL = ',+"\\<>;'


class Tls:
    """The TLS of one listener. Take `context` anew for each connection: a reload changes it."""

    def __init__(self, options: TlsOptions) -> None:
        self.options = options
        self.context = make_context(options)

    def reload(self, options: TlsOptions) -> None:
        """New certificates for new connections; those that are there keep theirs. On an error nothing changes."""
        self.context = make_context(options)
        self.options = options


def make_context(options: TlsOptions) -> ssl.SSLContext:
    """The context of a listener; ConfigError says which file is at fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(options.cert_file, f"the certificate, with the key {options.key_file}", options.key_file, context)
    if options.ca_file is not None:
        try:
            context.load_verify_locations(options.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError([f"tls: cannot use {options.ca_file} as a CA: {_why(error)}"]) from error
    elif options.verify:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED if options.verify else ssl.CERT_NONE
    return context


def _load(cert_file: str, what: str, key_file: str, context: ssl.SSLContext) -> None:
    try:
        # A key with a password would make OpenSSL ask on the terminal: an empty one is an error instead.
        context.load_cert_chain(cert_file, key_file, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError([f"tls: cannot use {cert_file} as {what}: {_why(error)}"]) from error


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not a PEM file that OpenSSL can read"
    return getattr(error, "strerror", None) or str(error)


def log_handshake(log: logging.Logger, what: str, error: Exception) -> None:
    """A handshake failed. A port that is probed (silence, or bytes that are no TLS) is no error of anybody."""
    text, level = _why_handshake(error)
    log.log(level, "%s: %s", what, text)


def _why_handshake(error: Exception) -> tuple[str, int]:
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        return "first record does not look like a TLS handshake", logging.DEBUG
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error), logging.ERROR
    if isinstance(error, TimeoutError | ConnectionAbortedError):
        return "timeout", logging.DEBUG
    return getattr(error, "strerror", None) or "EOF", logging.ERROR


def names_in(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Whom a verified client certificate may stand for, most specific first: e-mails, hosts, URIs, the subject.

    `certificate` is what `SSLObject.getpeercert()` gives. The subject comes in both usual orders.
    """
    if not certificate:
        return ()
    alternatives: list[tuple[str, str]] = list(certificate.get("subjectAltName", ()))
    names = [value for kind in ("email", "DNS", "URI") for found, value in alternatives if found == kind]
    parts = [
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in group)
        for group in certificate.get("subject", ())
    ]
    return tuple(dict.fromkeys([*names, ",".join(reversed(parts)), ",".join(parts)]))


def _escaped(value: str) -> str:
    text = "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in value)
    return f"\\{text}" if text[:1] in (" ", "#") else text
