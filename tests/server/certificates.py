"""Certificates for tests, by openssl: an authority, its servers and clients, and a stranger."""

import subprocess
from pathlib import Path


def make(folder: Path) -> Path:
    """Fill a folder with `ca.pem`, `stranger.pem` and pairs of `NAME.pem` and `NAME.key`."""
    folder.mkdir(parents=True, exist_ok=True)
    _authority(folder, "ca")
    _authority(folder, "stranger")
    local = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    _signed(folder, "server", "ca", f"{local},DNS:s0,DNS:s1")
    _signed(folder, "s0", "ca", f"{local},DNS:s0")
    _signed(folder, "s1", "ca", f"{local},DNS:s1")
    _signed(folder, "auditor", "ca", "subjectAltName=DNS:auditor.example.org")
    _signed(folder, "mallory", "stranger", "subjectAltName=DNS:auditor.example.org")
    return folder


def _authority(folder: Path, name: str) -> None:
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem"),
        *("-days", "2", "-subj", f"/CN={name}"),
        # Python 3.13 verifies strictly, and refuses an authority without it.
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )


def _signed(folder: Path, name: str, authority: str, names: str) -> None:
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.csr"),
        *("-subj", f"/CN={name}"),
    )
    (folder / f"{name}.ext").write_text(f"{names}\nauthorityKeyIdentifier=keyid\n")
    _openssl(
        *("x509", "-req", "-in", f"{folder}/{name}.csr", "-days", "2", "-CAcreateserial"),
        *("-CA", f"{folder}/{authority}.pem", "-CAkey", f"{folder}/{authority}.key"),
        *("-out", f"{folder}/{name}.pem", "-extfile", f"{folder}/{name}.ext"),
    )


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)
