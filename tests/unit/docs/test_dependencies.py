"""docs/dependencies.md lists what the lock has, in its version."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
_IMPORTED = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)
_ROW = re.compile(r"^\| ([a-z0-9-]+) \| ([0-9][0-9.]*) \|", re.MULTILINE)


def test_every_locked_package_is_listed_in_its_version() -> None:
    lock = (REPOSITORY / "hack/requirements.txt").read_text()
    text = (REPOSITORY / "docs/dependencies.md").read_text()
    listed = dict(_ROW.findall(text))
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE):
        locked.setdefault(name, []).append(version)
    assert listed.keys() == locked.keys()
    for name, versions in locked.items():
        # Other versions of Python may need another package; the text below the tables lists it.
        assert listed[name] == versions[0]
        assert all(version in text for version in versions)


def test_direct_dependencies_are_listed_separately() -> None:
    named = re.search(
        r"^dependencies = \[(.*?)^\]", (REPOSITORY / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE
    )
    assert named is not None
    declared = {name.lower() for name in re.findall(r'"([A-Za-z0-9-]+)', named[1])}
    text = (REPOSITORY / "docs/dependencies.md").read_text()
    assert {name for name, _ in _ROW.findall(text.partition("## Brought")[0])} == declared


def test_what_we_name_ourselves_is_imported() -> None:
    """A package that nothing uses any more still has to be shipped, reviewed and kept up to date."""
    named = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    declared = {re.split(r"[^A-Za-z0-9-]", requirement)[0].lower() for requirement in named}
    roots = (REPOSITORY / folder for folder in ("proto", "exporter", "plugin"))
    imported = {name for root in roots for file in root.rglob("*.py") for name in _IMPORTED.findall(file.read_text())}
    makers = packages_distributions()
    used = {maker.lower().replace("_", "-") for name in imported for maker in makers.get(name, ())}
    # uvicorn imports httptools, in the module that the code derives from.
    assert declared == used & declared | {"httptools"}


LOCKS = sorted((REPOSITORY / "hack").glob("requirements*.txt"))


def test_every_locked_file_has_its_hash_and_no_lock_names_an_index() -> None:
    assert {lock.name for lock in LOCKS} == {"requirements.txt", "requirements-dev.txt"}
    for lock in LOCKS:
        text = lock.read_text()
        entries = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]
        assert entries
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
        assert "://" not in text
        assert "index-url" not in text


def test_whatever_installs_from_a_lock_checks_the_hashes() -> None:
    for name in ("venv", "sbom", "helm"):
        text = (REPOSITORY / "hack" / name).read_text().replace("\\\n", " ")
        installing = [
            line for line in text.splitlines() if re.search(r"pip.* (install|download) .*--requirement", line)
        ]
        assert installing, name
        assert all("--require-hashes" in line for line in installing), name
    # The image's packages are installed by a call that has no command line.
    image = (REPOSITORY / "hack/images/application.py").read_text()
    assert re.findall(r'"--requirement"', image) == re.findall(r'(?<="--require-hashes", )"--requirement"', image) != []


def test_the_lock_of_the_image_is_a_subset_of_the_developers_lock() -> None:
    def locked(name: str) -> set[tuple[str, str]]:
        return set(re.findall(r"^([a-z0-9-]+)==(\S+)", (REPOSITORY / "hack" / name).read_text(), re.MULTILINE))

    assert locked("requirements.txt") <= locked("requirements-dev.txt")
