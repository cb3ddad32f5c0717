"""A kubeconfig for the sandbox, as kubectl and every client library read it."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from sandbox.apiserver.errors import Json

NAME = "topowise-sandbox"


def document(url: str, *, token: str | None = None, insecure: bool = False) -> Json:
    """Returns the kubeconfig of a cluster. `insecure` skips the verification of a self-signed certificate."""
    cluster: Json = {"server": url} | ({"insecure-skip-tls-verify": True} if insecure else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": token} if token else {}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }


def write(path: Path, url: str, *, token: str | None = None, insecure: bool = False) -> Path:
    """Writes it, readable by the owner alone, since it may hold a token.

    The file is written aside and renamed, so that a waiting reader never sees a part of it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.touch(mode=0o600)
    aside.write_text(yaml.safe_dump(document(url, token=token, insecure=insecure), sort_keys=False))
    return aside.replace(path)
