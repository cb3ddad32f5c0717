"""The base of the image is named by digest, in one place."""

from __future__ import annotations

from images import engines, renew


def test_the_base_is_named_by_digest() -> None:
    assert renew.pinned() == engines.BASE
    assert engines.BASE.startswith("docker.io/library/python:3.11-slim-bookworm@sha256:")
