"""Certificate authorities made on the spot by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest


class Authority:
    """A CA in `directory`. Skips the test if openssl is not installed.

    `bare`: without key identifiers and key usage, like the CAs that EKS and MicroK8s made for years.
    """

    def __init__(self, directory: Path, name: str, *, bare: bool = False) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl command to make certificates")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = name
        (directory / "bare.cnf").write_text(_BARE)
        config = ["-config", "bare.cnf"] if bare else []
        self._openssl(*_new_key(name, name), "-x509", *config, "-days", "2", "-out", f"{name}.crt")

    def subordinate(self, name: str) -> Authority:
        """Returns an intermediate CA, whose chain does not include this CA."""
        authority = Authority(self._directory / name, name)
        extensions = ["-addext", "basicConstraints=critical,CA:TRUE", "-out", f"{name}.csr"]
        authority._openssl("req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", *extensions)
        signing = ["-CA", str(self.certificate), "-CAkey", str(self._directory / f"{self._name}.key")]
        copied = ["-CAcreateserial", "-copy_extensions", "copy", "-days", "2", "-out", f"{name}.crt"]
        authority._openssl("x509", "-req", "-in", f"{name}.csr", *signing, *copied)
        return authority

    @property
    def certificate(self) -> Path:
        """The CA's own certificate, to trust it by."""
        return self._directory / f"{self._name}.crt"

    def issue(self, name: str, names: str = "IP:127.0.0.1", days: int = 2, usage: str = "") -> tuple[Path, Path]:
        """Certificate and key for `names` (as in subjectAltName), for this `usage` alone (as in extendedKeyUsage)."""
        request = ["-addext", f"subjectAltName={names}", "-out", f"{name}.csr"]
        request += ["-addext", f"extendedKeyUsage={usage}"] if usage else []
        self._openssl(*_new_key(name, name), *request)
        signing = ["-CA", f"{self._name}.crt", "-CAkey", f"{self._name}.key", "-CAcreateserial"]
        copied = ["-copy_extensions", "copy", "-days", str(days), "-out", f"{name}.crt"]
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signing, *copied)
        return self._directory / f"{name}.crt", self._directory / f"{name}.key"

    def issue_later(self, name: str, days: int = 2) -> tuple[Path, Path]:
        """Certificate and key that are valid from the day after tomorrow on."""
        self._openssl(*_new_key(name, name), "-out", f"{name}.csr")
        (self._directory / "later.cnf").write_text(_LATER)
        (self._directory / "later.txt").write_text("")
        (self._directory / "later.srl").write_text("1000\n")
        start = datetime.now(UTC) + timedelta(days=days)
        window = [
            part
            for flag, at in (("-startdate", start), ("-enddate", start + timedelta(days=2)))
            for part in (flag, f"{at:%Y%m%d%H%M%SZ}")
        ]
        ca = ["-cert", f"{self._name}.crt", "-keyfile", f"{self._name}.key", "-config", "later.cnf"]
        self._openssl("ca", "-batch", "-notext", *ca, *window, "-in", f"{name}.csr", "-out", f"{name}.crt")
        return self._directory / f"{name}.crt", self._directory / f"{name}.key"

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._directory, check=True, capture_output=True, timeout=30)


_BARE = """
[req]
distinguished_name = name
x509_extensions = ca
[name]
[ca]
basicConstraints = critical,CA:TRUE
subjectKeyIdentifier = none
authorityKeyIdentifier = none
"""

# openssl x509 can start a certificate later from 3.4 on only.
_LATER = """
[ca]
default_ca = later
[later]
database = later.txt
serial = later.srl
new_certs_dir = .
default_md = sha256
policy = any
[any]
commonName = supplied
"""


def _new_key(name: str, subject: str) -> list[str]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    return ["req", *curve, "-keyout", f"{name}.key", "-subj", f"/CN={subject}"]
