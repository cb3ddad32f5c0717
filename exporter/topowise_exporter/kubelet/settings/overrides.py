"""Fields that are given to the exporter itself, applied over whatever a source says, as the kubelet applies its flags.

A flag replaces a field as a whole, maps and lists too; only feature gates are merged, flag over file
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
# Done by the kubelet while it reads its main file, so a flag for it would come too late.
_KNOWN = kubeletconfig.FIELDS - {"mergeDefaultEvictionSettings"}


class Overrides:
    """Checked once, because a misspelt override that is silently ignored is found at night. Raises ConfigError."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        if unknown := sorted(given.keys() - _KNOWN):
            raise ConfigError(f"{_WHERE}.{unknown[0]}", f"no such field, expected {', '.join(sorted(_KNOWN))}")
        try:
            checked = kubeletconfig.check(kubeletconfig.convert(given, source=_WHERE), source=_WHERE)
        except SourceError as exc:
            raise ConfigError(_WHERE, str(exc).removeprefix(f"{_WHERE}: ")) from exc
        self._fields = {name: getattr(checked, name) for name, item in given.items() if item is not None}

    def __bool__(self) -> bool:
        return bool(self._fields)

    @property
    def stand_alone(self) -> bool:
        """Whether they say enough to be published without a source: a policy that is guessed is worse than none."""
        return "topologyManagerPolicy" in self._fields

    def over(self, config: KubeletConfiguration) -> KubeletConfiguration:
        """The configuration with the given fields."""
        fields = dict(self._fields)
        if "featureGates" in fields:
            fields["featureGates"] = (config.featureGates or {}) | fields["featureGates"]
        return msgspec.structs.replace(config, **fields)
