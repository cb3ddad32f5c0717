"""`make base`: asks the registry for the digest of the base's tag, and writes the digest into the Dockerfile.

A tag moves with every rebuild, so two builds of a commit could have different bases. A digest never moves, and never
gets security updates either: run `make base` before a release, and when a scanner complains. The registry is asked for
the digest of the index over all architectures; nothing is pulled, and no engine is needed.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from images.application import REPOSITORY, ImageError

DOCKERFILE: Final = REPOSITORY / "hack/images/Dockerfile"
_PINNED: Final = re.compile(
    r"^ARG BASE=(?P<host>[^/\s]+)/(?P<name>[^:@\s]+):(?P<tag>[^@\s]+)@(?P<digest>sha256:\S+)$", re.M
)
# docker.io is a name; who answers for it has another.
_HOSTS: Final = {"docker.io": "registry-1.docker.io"}
_INDEX: Final = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
_PATIENCE_S: Final = 20


def pinned(dockerfile: Path = DOCKERFILE) -> str:
    """Returns the base that the Dockerfile names, by digest. Raises ImageError."""
    match = _PINNED.search(dockerfile.read_text())
    if match is None:
        raise ImageError(f"{dockerfile.name} has no ARG BASE=HOST/NAME:TAG@sha256:...")
    return match[0].removeprefix("ARG BASE=")


def renew(dockerfile: Path = DOCKERFILE, *, scheme: str = "https") -> str:
    """Writes the tag's present digest into the Dockerfile. Raises ImageError."""
    text = dockerfile.read_text()
    pinned(dockerfile)
    match = _PINNED.search(text)
    assert match is not None
    host = _HOSTS.get(match["host"], match["host"])
    digest = _digest(f"{scheme}://{host}/v2/{match['name']}/manifests/{match['tag']}")
    dockerfile.write_text(text.replace(match["digest"], digest))
    return pinned(dockerfile)


def _digest(url: str, token: str = "") -> str:
    headers = {"Accept": _INDEX, **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers, method="HEAD"), timeout=_PATIENCE_S
        ) as answer:
            digest = str(answer.headers.get("Docker-Content-Digest", ""))
    except urllib.error.HTTPError as exc:
        if exc.code == 401 and not token:
            return _digest(url, _token(exc.headers.get("WWW-Authenticate", "")))
        raise ImageError(f"{url} answered {exc.code}; the base stays as it is") from exc
    except OSError as exc:
        raise ImageError(f"{url} cannot be reached ({exc}); the base stays as it is") from exc
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ImageError(f"{url} named no digest but {digest!r}; the base stays as it is")
    return digest


def _token(challenge: str) -> str:
    """Returns an anonymous token for the registry, as its challenge demands."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    if not realm.startswith(("https://", "http://127.0.0.1")):
        raise ImageError(f"the registry asks for a token at {realm!r}; the base stays as it is")
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    try:
        with urllib.request.urlopen(f"{realm}?{query}", timeout=_PATIENCE_S) as answer:
            return str(json.load(answer)["token"])
    except (OSError, ValueError, KeyError) as exc:
        raise ImageError(f"{realm} gives no token ({exc}); the base stays as it is") from exc
