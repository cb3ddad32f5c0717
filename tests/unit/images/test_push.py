"""A push that failed can be repeated: what it puts together is put together anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from images import __main__ as images
from images import application, engines

NAME = "ghcr.io/topowise/topowise:0.1.0"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> engines.Engine:
    """A buildah with an empty image for each architecture, in a store of its own."""
    if not shutil.which("buildah"):
        pytest.skip("no buildah here: no image is pushed")
    monkeypatch.setattr(engines, "_STORE", tmp_path)
    buildah = engines.named("buildah")
    for architecture in application.MACHINES:
        container = buildah.run("from", f"--arch={architecture}", "scratch")
        buildah.run("commit", "--rm", container, f"{NAME}-{architecture}")
    return buildah


def test_a_second_push_has_only_the_current_images(engine: engines.Engine) -> None:
    for built in (list(application.MACHINES), ["amd64"]):
        listing = images._listing(engine, NAME, built)
        assert engine.run("manifest", "inspect", listing).count('"digest"') == len(built)
