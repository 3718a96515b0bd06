"""A certificate authority for loopback, made anew each time."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from distributed_privrl.runtime.tls import AUTHORITY, CERTIFICATE, KEY, SWITCH


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begun(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def tls_environment(folder: Path, *further: str) -> dict[str, str]:
    """Return what Ray reads for TLS, with an authority of its own.

    Args:
        folder: where the files go.
        further: addresses that the certificate names beside 127.0.0.1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = (
        _begun("test authority", "test authority", authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    numbers = [ipaddress.ip_address(one) for one in ("127.0.0.1", *further)]
    addresses = [x509.DNSName("localhost"), *map(x509.IPAddress, numbers)]
    leaf = (
        _begun("localhost", "test authority", own.public_key())
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .sign(authority, hashes.SHA256())
    )
    paths = {
        CERTIFICATE: folder / "node.pem",
        KEY: folder / "node.key",
        AUTHORITY: folder / "ca.pem",
    }
    paths[CERTIFICATE].write_bytes(leaf.public_bytes(Encoding.PEM))
    paths[AUTHORITY].write_bytes(root.public_bytes(Encoding.PEM))
    paths[KEY].touch(mode=0o600)
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    paths[KEY].write_bytes(own.private_bytes(*form))
    return {SWITCH: "1"} | {name: str(path) for name, path in paths.items()}
