"""Creates and renews an authority and certificates for the drivers' mutual TLS.

Certificates are valid for ten years, but no signed certificate is valid for longer than its
authority. An authority is renewed with its own key, so certificates that it signed before remain
valid.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

LIFE: Final = timedelta(days=3650)
# A certificate that has less time left than this causes a warning.
SHORT: Final = timedelta(days=30)
# A certificate with less than a third of its lifetime left is renewed.
_LEFT_SHARE: Final = 3
_SKEW: Final = timedelta(hours=1)
_MOST_CHARACTERS: Final = 64
_Key: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH


def make_authority(name: str) -> tuple[bytes, bytes]:
    """Create an authority; return its certificate and key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _authority(_name(name), key), _pem(key)


def renew_authority(certificate: bytes, key: bytes) -> bytes:
    """Return the authority's certificate for another ten years, with the same name and key.

    Raises:
        ValueError: the certificate or the key cannot be parsed.
    """
    return _authority(x509.load_pem_x509_certificate(certificate).subject, _signer(key))


def _authority(subject: x509.Name, key: _Key) -> bytes:
    certificate = (
        _builder(subject, subject, key.public_key(), datetime.now(UTC) + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def sign(
    authority: bytes, authority_key: bytes, names: Sequence[str], use: x509.ObjectIdentifier
) -> tuple[bytes, bytes]:
    """Create a certificate for these DNS names and only this use; return it and its key as PEM.

    Raises:
        ValueError: the authority or its key cannot be parsed.
    """
    issuer = x509.load_pem_x509_certificate(authority)
    signer = _signer(authority_key)
    end = min(datetime.now(UTC) + LIFE, issuer.not_valid_after_utc)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name(names[0]), issuer.subject, key.public_key(), end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(one) for one in names]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def is_good(certificate: bytes, authority: bytes, name: str, now: datetime | None = None) -> bool:
    """Return True if the certificate is fresh and the authority signed it for `name`.

    A fresh certificate has at least a third of its lifetime left.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate)
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return name in names.get_values_for_type(x509.DNSName) and _is_fresh(found, now)


def is_fresh(certificate: bytes) -> bool:
    """Return True if at least a third of the certificate's lifetime remains."""
    try:
        return _is_fresh(x509.load_pem_x509_certificate(certificate))
    except ValueError:
        return False


def lasting(pem: bytes, *, is_bundle: bool = False) -> tuple[bool, str]:
    """Return whether the certificate is valid, and its time of expiry if that is near or past.

    In a chain, the first certificate counts, because it is the owner's. In a bundle of authorities,
    the certificate that expires last counts. Text that cannot be parsed counts as valid.
    """
    try:
        ends = [one.not_valid_after_utc for one in x509.load_pem_x509_certificates(pem)]
    except ValueError:
        return True, ""
    left = (max(ends) if is_bundle else ends[0]) - datetime.now(UTC)
    if left > SHORT:
        return True, ""
    return (True, f"ends in {left.days} days") if left > timedelta() else (False, "has ended")


def is_of_key(certificates: bytes, authority: bytes) -> bool:
    """Return True if one of the certificates has the same key as the authority.

    An authority keeps its key when it is renewed.
    """
    try:
        key = x509.load_pem_x509_certificate(authority).public_key()
        return any(one.public_key() == key for one in x509.load_pem_x509_certificates(certificates))
    except ValueError:
        return False


def _is_fresh(found: x509.Certificate, now: datetime | None = None) -> bool:
    left = found.not_valid_after_utc - (now or datetime.now(UTC))
    return left > (found.not_valid_after_utc - found.not_valid_before_utc) / _LEFT_SHARE


def _signer(key: bytes) -> _Key:
    signer = serialization.load_pem_private_key(key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("the authority's key is neither RSA nor EC")  # noqa: TRY004 - a text's
    return signer


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    end: datetime,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_MOST_CHARACTERS])])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
