"""Reads the kubelet's --config file and the drop-ins of its --config-dir, merged as the kubelet merges them (KEP-3983).

cmd/kubelet/app/server.go, mergeKubeletConfigurations: the main file is loaded and defaulted. Then every file that ends
in `.conf`, in lexical order and including subdirectories, is applied as a JSON merge patch (RFC 7396): maps are merged
key by key, feature gates too; lists and scalars are replaced; null removes. Two things follow:

- Hard eviction thresholds get their defaults before the drop-ins. A drop-in that sets one threshold keeps the others;
  the main file would drop them. mergeDefaultEvictionSettings in a drop-in has no effect.
- Without a main file there are no default thresholds at all.

A file is read again only when it has changed. A changed file counts only once the kubelet has restarted, because the
kubelet keeps what it read at its start. The kubelet recreates its podresources socket at each start. The comparison
uses inode change times (ctime), which no tool can set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from topowise import files, kubelet_fields, kubeletconfig
from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration

DROP_IN: Final = ".conf"

_DEFAULTED: Final = frozenset(
    (
        "topologyManagerPolicy",
        "topologyManagerScope",
        "cpuManagerPolicy",
        "memoryManagerPolicy",
        "maxPods",
        "evictionHard",
    )
)

_Stamp = tuple[str, int, int, int, int]


class FileSource:
    """Either path may be empty. Without `socket`, the kubelet's podresources socket, changed files count at once."""

    name: Final = "file"
    version: Final = ""

    def __init__(self, config_file: str, config_dir: str = "", *, socket: str = "") -> None:
        self._config_file = config_file
        self._config_dir = config_dir
        self._socket = socket
        self._seen: tuple[str | None, list[_Stamp]] | None = None
        self._read = KubeletConfiguration()
        # The configuration that the kubelet uses, and the stamps of its files.
        self._used: KubeletConfiguration | None = None
        self._used_from: list[_Stamp] = []

    def expire(self) -> None:
        """Does nothing: every `read` compares the files."""

    async def read(self, kubelet_version: str | None) -> KubeletConfiguration:
        """Returns the merged configuration with defaults. Raises SourceError that names the file, also for a file that
        is newer than the kubelet's start."""
        paths = [self._config_file] if self._config_file else []
        if self._config_dir:
            paths += drop_ins(self._config_dir)
        # Stamps are taken before the files are read: a file that changes in between is read again next time.
        seen = kubelet_version, [_stamp(path) for path in paths]
        if seen != self._seen:
            self._read = load(self._config_file, paths[bool(self._config_file) :], kubelet_version)
            self._seen = seen
        if self._used not in (None, self._read) and seen[1] != self._used_from:
            self._check_started_since(seen[1])
        self._used, self._used_from = self._read, seen[1]
        return self._read

    def _check_started_since(self, stamps: list[_Stamp]) -> None:
        """Raises SourceError if a file is newer than the running kubelet."""
        if not self._socket:
            return
        try:
            started = Path(self._socket).stat().st_ctime_ns
        except OSError:
            started = 0
        # A removed drop-in changes only its directory.
        folder = [_stamp(self._config_dir)] if self._config_dir else []
        for path, *_, changed in (*stamps, *folder):
            if changed > started:
                raise SourceError(path, "has changed since the kubelet started; it counts after the kubelet's restart")


def load(config_file: str, drop_in_files: list[str], kubelet_version: str | None = None) -> KubeletConfiguration:
    """Returns the main file (none if empty) with the drop-ins applied in order, and defaults. Raises SourceError."""
    merged: dict[str, Any] = {}
    if config_file:
        merged = kubelet_fields.zeroed(_document(config_file), source=config_file)
        main = kubeletconfig.with_defaults(kubeletconfig.convert(merged, source=config_file), kubelet_version)
        merged["evictionHard"] = main.evictionHard
    for path in drop_in_files:
        merged = merge_patch(merged, _document(path))
    source = f"{config_file or drop_in_files[0]} with drop-ins" if drop_in_files else config_file
    if drop_in_files:
        merged = kubelet_fields.folded(merged, _DEFAULTED, source=source)
    config = kubeletconfig.check(kubeletconfig.convert(merged, source=source), source=source)
    return kubeletconfig.with_defaults(kubeletconfig.without_eviction_defaults(config), kubelet_version)


def merge_patch(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `target` with `patch` applied (RFC 7396), as a new object."""
    merged = dict(target)
    for name, item in patch.items():
        if item is None:
            merged.pop(name, None)
        elif isinstance(item, Mapping):
            inner = merged.get(name)
            merged[name] = merge_patch(inner if isinstance(inner, Mapping) else {}, item)
        else:
            merged[name] = item
    return merged


def drop_ins(directory: str) -> list[str]:
    """Returns the paths of the drop-ins in the order of application (filepath.WalkDir). Raises SourceError."""
    try:
        return list(_walk(Path(directory)))
    except OSError as exc:
        raise SourceError(exc.filename or directory, f"cannot be listed: {exc.strerror}") from exc


def _walk(directory: Path) -> Iterator[str]:
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        # WalkDir does not follow links to directories; a mounted ConfigMap has such a link, `..data`.
        if entry.is_dir() and not entry.is_symlink():
            yield from _walk(entry)
        elif entry.name.endswith(DROP_IN):
            yield str(entry)


def _document(path: str) -> dict[str, Any]:
    try:
        text = files.read_regular(path)
    except OSError as exc:
        raise SourceError(path, f"cannot be read: {exc.strerror}") from exc
    # A kubelet does not start with an empty file, so this file is being written.
    if not text.strip():
        raise SourceError(path, "is empty")
    return kubeletconfig.document(text, source=path)


def _stamp(path: str) -> _Stamp:
    try:
        status = Path(path).stat()
    except OSError as exc:
        raise SourceError(path, f"cannot be read: {exc.strerror}") from exc
    return path, status.st_mtime_ns, status.st_ino, status.st_size, status.st_ctime_ns
