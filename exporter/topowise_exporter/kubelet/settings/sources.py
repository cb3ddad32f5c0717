"""Selects the kubelet's configuration: the first source that answers, with the overrides applied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from topowise import files, kubelet_fields, kubeletconfig
from topowise.errors import ConfigError, SourceError
from topowise.kube.credentials import SERVICE_ACCOUNT
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime import clock
from topowise.runtime.config import Section
from topowise_exporter.kubelet.settings.configz import ConfigzSource

_WHERE = "$.kubelet.overrides"
# The kubelet applies this field while it reads its main file, so an override has no effect.
_KNOWN = kubeletconfig.FIELDS - {"mergeDefaultEvictionSettings"}
# Next steps for the operator; docs/how-to/on has them by distribution.
_WAYS_OUT: Final = (
    "nothing is published: name the kubelet's --config in kubelet.configFile, ask the kubelet itself by "
    "kubelet.configz.enabled, or give its policies in kubelet.overrides"
)
# For this time the last answer of a source is preferred to the present answer of a later source.
PATIENCE_S: Final = 300.0
ADDRESS_VARIABLE: Final = "NODE_ADDRESS"
"""Environment variable for the address at which configz is asked: `status.hostIP`, as the file serves every node."""
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


class Configz(Section, frozen=True):
    """The running kubelet's own answer: the configuration in use, with flags and defaults, whatever the files contain
    by now. Needs `get` on `nodes/configz` (1.33 and later; `nodes/proxy` before) and a serving certificate that can be
    verified. kubeadm's kubelets have such a certificate only with `serverTLSBootstrap: true`."""

    enabled: bool = False
    """Off by default, because of these two requirements; where they are met, this is the best source."""
    ca_file: str = str(SERVICE_ACCOUNT / "ca.crt")
    """PEM bundle that verifies the kubelet's certificate; the default is the cluster's CA. Read for each request."""


class Kubelet(Section, frozen=True):
    """Sources of the kubelet's configuration, in order of preference."""

    configz: Configz = msgspec.field(default_factory=Configz)
    """The kubelet's HTTPS endpoint."""
    config_file: str = "/var/lib/kubelet/config.yaml"
    """The kubelet's --config; empty: the kubelet has none, or the exporter cannot read it."""
    config_dir: str = ""
    """The kubelet's --config-dir with drop-ins (*.conf); empty: the kubelet has none. Mount it at the kubelet's path.
    """
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of a KubeletConfiguration that override every source, as the kubelet's own flags do.

    With `topologyManagerPolicy` set they also replace a source that cannot be read.
    """


class Overrides:
    """The overrides, validated at start: a misspelt field must not be ignored. Raises ConfigError."""

    def __init__(self, overrides: Mapping[str, Any]) -> None:
        if unknown := sorted(overrides.keys() - _KNOWN):
            raise ConfigError(f"{_WHERE}.{unknown[0]}", f"no such field, expected {', '.join(sorted(_KNOWN))}")
        try:
            checked = kubeletconfig.check(kubeletconfig.convert(overrides, source=_WHERE), source=_WHERE)
        except SourceError as exc:
            raise ConfigError(_WHERE, str(exc).removeprefix(f"{_WHERE}: ")) from exc
        self._fields = {name: getattr(checked, name) for name, item in overrides.items() if item is not None}

    def __bool__(self) -> bool:
        return bool(self._fields)

    @property
    def stand_alone(self) -> bool:
        """Whether the overrides suffice to publish without a source: a guessed policy is worse than none."""
        return "topologyManagerPolicy" in self._fields

    def over(self, config: KubeletConfiguration) -> KubeletConfiguration:
        """Returns the configuration with the overrides applied."""
        fields = dict(self._fields)
        if "featureGates" in fields:
            fields["featureGates"] = (config.featureGates or {}) | fields["featureGates"]
        return msgspec.structs.replace(config, **fields)


Name = Literal["configz", "file", "flags", "defaults"]


class Source:
    """Reads the first usable source. `name` is the source in use ("" before the first answer); `problems` has a line
    for each source that failed in the last `read`; `socket` is the kubelet's podresources socket. Raises ConfigError
    for settings that cannot work. Not for use by two tasks at once."""

    def __init__(
        self,
        settings: Kubelet,
        *,
        socket: str = "",
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._candidates = _candidates(settings, socket, environment, clock)
        self._overrides = Overrides(settings.overrides)
        self._clock = clock
        self._good: KubeletConfiguration | None = None
        self._good_at = 0.0
        self.name: Name | Literal[""] = ""
        self.problems: tuple[str, ...] = ()
        self.version = ""
        """The kubelet's version as reported by the kubelet, "" if no source asks it."""

    def expire(self) -> None:
        """Drops cached answers: the kubelet has restarted, so its configuration and version may have changed."""
        for candidate in self._candidates:
            candidate.expire()

    async def read(self, kubelet_version: str | None = None) -> KubeletConfiguration:
        """Returns the configuration that the kubelet uses; `kubelet_version` is the Node's, None: the newest. Raises
        SourceError if no source was readable so far and the overrides do not suffice."""
        problems: list[str] = []
        config = await self._first_readable(kubelet_version, problems)
        self.problems = tuple(problems)
        self.version = next((candidate.version for candidate in self._candidates if candidate.version), "")
        if config is None:
            return self._without_sources(kubelet_version)
        return self._overrides.over(config)

    async def _first_readable(self, version: str | None, problems: list[str]) -> KubeletConfiguration | None:
        for candidate in self._candidates:
            try:
                self._good = await candidate.read(version)
            except SourceError as exc:
                problems.append(f"{candidate.name}: {exc}")
                if candidate.name == self.name and self._clock() - self._good_at < PATIENCE_S:
                    break
            else:
                self._good_at = self._clock()
                self.name = candidate.name
                break
        return self._good

    def _without_sources(self, version: str | None) -> KubeletConfiguration:
        if self._candidates and not self._overrides.stand_alone:
            raise SourceError("kubelet configuration", "; ".join([*self.problems, _WAYS_OUT]))
        self.name = "flags" if self._overrides else "defaults"
        return self._overrides.over(kubeletconfig.with_defaults(KubeletConfiguration(), version))


def _candidates(
    settings: Kubelet, socket: str, environment: Mapping[str, str], clock: Callable[[], float]
) -> tuple[ConfigzSource | FileSource, ...]:
    candidates: list[ConfigzSource | FileSource] = []
    if settings.configz.enabled:
        address = environment.get(ADDRESS_VARIABLE, "")
        if not address:
            raise ConfigError(
                "$.kubelet.configz", f"is enabled, and ${ADDRESS_VARIABLE} is not set to the node's address"
            )
        candidates.append(ConfigzSource(settings.configz.ca_file, address, clock=clock))
    if settings.config_file or settings.config_dir:
        candidates.append(FileSource(settings.config_file, settings.config_dir, socket=socket))
    return tuple(candidates)


class FileSource:
    """The kubelet's --config file and the drop-ins of its --config-dir, merged as the kubelet merges them (KEP-3983).
    Either path may be empty.

    cmd/kubelet/app/server.go, mergeKubeletConfigurations: the main file is loaded and defaulted. Then every file that
    ends in `.conf`, in lexical order and including subdirectories, is applied as a JSON merge patch (RFC 7396): maps
    are merged key by key, feature gates too; lists and scalars are replaced; null removes. Two things follow:

    - Hard eviction thresholds get their defaults before the drop-ins. A drop-in that sets one threshold keeps the
      others; the main file would drop them. mergeDefaultEvictionSettings in a drop-in has no effect.
    - Without a main file there are no default thresholds at all.

    A file is read again only when it has changed. A changed file counts only once the kubelet has restarted, because
    the kubelet keeps what it read at its start. The kubelet recreates its podresources socket at each start. The
    comparison uses inode change times (ctime), which no tool can set. Without `socket`, the kubelet's podresources
    socket, changed files count at once.
    """

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
