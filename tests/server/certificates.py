"""Certificates for tests: a CA, a server's for 127.0.0.1, a client's with a name; made in a folder on demand."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str


def make_certificates(folder: Path, client_email: str = "ann@example.org") -> Certificates:
    folder.mkdir(parents=True, exist_ok=True)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("test CA")
    ca = _build(ca_name, ca_name, ca_key, ca_key, x509.BasicConstraints(ca=True, path_length=None), None)
    paths = {"ca": _write(folder / "ca.pem", ca.public_bytes(serialization.Encoding.PEM))}
    alternatives = {
        "server": x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        ),
        "client": x509.SubjectAlternativeName([x509.RFC822Name(client_email)]),
    }
    for who, names in alternatives.items():
        key = ec.generate_private_key(ec.SECP256R1())
        plain = x509.BasicConstraints(ca=False, path_length=None)
        cert = _build(_name(who), ca_name, key, ca_key, plain, names)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        paths[f"{who}_cert"] = _write(folder / f"{who}.pem", cert.public_bytes(serialization.Encoding.PEM))
        paths[f"{who}_key"] = _write(folder / f"{who}.key", pem)
    return Certificates(**paths)


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Headrace"),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _build(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    basic: x509.BasicConstraints,
    names: x509.SubjectAlternativeName | None,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(basic, critical=True)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)
