"""Makes the certificates of a run with openssl."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def make(work: Path) -> tuple[dict[str, str], ssl.SSLContext]:
    """Returns the service's TLS configuration and a client's context, both from the same CA."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=work, check=True, capture_output=True, timeout=30)

    def request(name: str) -> list[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return ["req", *curve, "-keyout", f"{name}.key", "-subj", f"/CN={name}"]

    openssl(*request("ca"), "-x509", "-days", "2", "-out", "ca.crt")
    for name in ("server", "client"):
        openssl(*request(name), "-addext", "subjectAltName=IP:127.0.0.1", "-out", f"{name}.csr")
        signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-days", "2", "-out", f"{name}.crt")
    context = ssl.create_default_context(cafile=str(work / "ca.crt"))
    context.load_cert_chain(work / "client.crt", work / "client.key")
    files = {"certFile": "server.crt", "keyFile": "server.key", "clientCaFile": "ca.crt"}
    return {field: str(work / file) for field, file in files.items()}, context
