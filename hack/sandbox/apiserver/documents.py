"""JSON and YAML as the API takes them: YAML timestamps stay text, as in sigs.k8s.io/yaml; and a kubeconfig for the
sandbox, as kubectl and every client library read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import yaml

from sandbox.apiserver.errors import Json, bad_request


class _Loader(yaml.CSafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def load_all(path: Path) -> list[Json]:
    """Returns the objects in a YAML or JSON file, or in every such file of a directory."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml", ".json"))
        return [obj for file in files for obj in load_all(file)]
    return [obj for obj in yaml.load_all(path.read_text(), Loader=_Loader) if obj]


def decode(body: bytes, *, or_yaml: bool = False) -> Any:
    """Returns a request's body. Raises StatusError 400."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        if not or_yaml:
            raise bad_request(f"couldn't get version/kind; json parse error: {exc}") from exc
    try:
        return yaml.load(body, Loader=_Loader)
    except yaml.YAMLError as exc:
        raise bad_request(f"error decoding YAML: {exc}") from exc


_NAME = "topowise-sandbox"


def kubeconfig(url: str, *, token: str | None = None, insecure: bool = False) -> Json:
    """Returns the kubeconfig of a cluster. `insecure` skips the verification of a self-signed certificate."""
    cluster: Json = {"server": url} | ({"insecure-skip-tls-verify": True} if insecure else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _NAME, "user": {"token": token} if token else {}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": "default"}}],
        "current-context": _NAME,
    }


def write_kubeconfig(path: Path, url: str, *, token: str | None = None, insecure: bool = False) -> Path:
    """Writes it, readable by the owner alone, since it may hold a token.

    The file is written aside and renamed, so that a waiting reader never sees a part of it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.touch(mode=0o600)
    aside.write_text(yaml.safe_dump(kubeconfig(url, token=token, insecure=insecure), sort_keys=False))
    return aside.replace(path)
