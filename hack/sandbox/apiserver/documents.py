"""JSON and YAML as the API takes them: YAML timestamps stay text, as in sigs.k8s.io/yaml."""

from __future__ import annotations

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
