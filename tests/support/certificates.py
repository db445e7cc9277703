"""Creates certificates for tests of mutual TLS, with the openssl command.

They have the key usage and key identifiers that Python requires from 3.13 on.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_SIGNS = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
_IDENTIFIERS = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_ca(folder: Path, name: str, *, days: int = 2) -> None:
    """Create a CA as `<name>.pem` and `<name>.key`."""
    subject = ("-days", str(days), "-subj", f"/CN={name}", "-keyout", f"{name}.key")
    openssl(folder, "req", "-x509", *_KEY, *subject, *_SIGNS, "-out", f"{name}.pem")


def make_certificate(
    folder: Path, ca: str, name: str, host: str, *, days: int = 2, extensions: str = _IDENTIFIERS
) -> None:
    """Create `<name>.pem` and `<name>.key`, signed by a CA of `make_ca`; 0 days: expired."""
    openssl(
        folder,
        *("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
    )
    (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n{extensions}")
    openssl(
        folder,
        *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key"),
        *("-CAcreateserial", "-days", str(days), "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
    )
