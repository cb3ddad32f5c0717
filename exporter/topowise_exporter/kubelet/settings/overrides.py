"""Fields that are set in the exporter's own configuration. They override every source, as flags do for the kubelet.

A flag replaces a whole field, also a map or a list. Only feature gates are merged, with the flag taking precedence
(cmd/kubelet/app/server.go, kubeletConfigFlagPrecedence).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from topowise import kubeletconfig
from topowise.errors import ConfigError, SourceError
from topowise.kubeletconfig import KubeletConfiguration

_WHERE = "$.kubelet.overrides"
# The kubelet applies this field while it reads its main file, so an override has no effect.
_KNOWN = kubeletconfig.FIELDS - {"mergeDefaultEvictionSettings"}


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
