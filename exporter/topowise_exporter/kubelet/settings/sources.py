"""One configuration out of several sources: the first that answers, with the overrides applied over it.

A source that fails is passed over with a line of its own. But the kubelet keeps its configuration while a file is
being written or a port does not answer, so what a source said last stays true for a while, and for good if no other
source can be read: policy `none`, published because of a glitch, would cost every pod on the node its alignment. For
the same reason nothing is guessed while a source is configured that was never readable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

from topowise import kubeletconfig
from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.kubelet.settings.config_files import FileSource
from topowise_exporter.kubelet.settings.configz import ConfigzSource
from topowise_exporter.kubelet.settings.overrides import Overrides
from topowise_exporter.kubelet.settings.section import Kubelet

Name = Literal["configz", "file", "flags", "defaults"]

# What can be done about it; docs/how-to/on has each of them by distribution.
_WAYS_OUT: Final = (
    "nothing is published: name the kubelet's --config in kubelet.configFile, ask the kubelet itself by "
    "kubelet.configz.enabled, or give its policies in kubelet.overrides"
)

# How long the last answer of a source is preferred to the present one of a source after it.
PATIENCE_S: Final = 300.0


class Readable(Protocol):
    """A source. `read` gives the configuration with defaults, cached as it sees fit until it is told to `expire`, or
    raises SourceError; `version` is the kubelet's if the source has it from the kubelet itself, else ""."""

    @property
    def name(self) -> Name: ...

    @property
    def version(self) -> str: ...

    def expire(self) -> None: ...

    async def read(self, kubelet_version: str | None) -> KubeletConfiguration: ...


class Source:
    """`name` is the source in use ("" before the first answer); `problems` has a line for each that failed last time;
    `socket` is the kubelet's.

    Raises ConfigError for settings that cannot work. Not for use by two tasks at once.
    """

    def __init__(
        self,
        settings: Kubelet,
        *,
        socket: str = "",
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._candidates = _candidates(settings, socket, environment, clock)
        self._overrides = Overrides(settings.overrides)
        self._clock = clock
        self._good: KubeletConfiguration | None = None
        self._good_at = 0.0
        self.name: Name | Literal[""] = ""
        self.problems: tuple[str, ...] = ()
        self.version = ""
        """The kubelet's version in its own words, "" if no source asks it."""

    def expire(self) -> None:
        """The kubelet has restarted: its configuration and version may be others."""
        for candidate in self._candidates:
            candidate.expire()

    async def read(self, kubelet_version: str | None = None) -> KubeletConfiguration:
        """The kubelet's configuration as the kubelet sees it; `kubelet_version` is the Node's, None: the newest.

        Raises SourceError if nothing could be read so far and the overrides do not say enough.
        """
        problems: list[str] = []
        found = await self._first_readable(kubelet_version, problems)
        self.problems = tuple(problems)
        self.version = next((one.version for one in self._candidates if one.version), "")
        if found is None:
            return self._without_sources(kubelet_version)
        return self._overrides.over(found)

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
) -> tuple[Readable, ...]:
    found: list[Readable] = []
    if settings.configz.enabled:
        address = settings.configz.resolved_address(environment)
        found.append(ConfigzSource(settings.configz, address, clock=clock))
    if settings.config_file or settings.config_dir:
        found.append(FileSource(settings.config_file, settings.config_dir, socket=socket))
    return tuple(found)
