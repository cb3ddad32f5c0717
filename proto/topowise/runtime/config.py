"""Versioned configuration files in Kubernetes' format (`apiVersion`, `kind`, camelCase).

A kind is a frozen struct derived from `Configuration`; the docstring of each field has meaning, unit, default and
reason. Unknown fields and duplicate keys are errors, because a field that is silently ignored is noticed only in an
incident. Errors name the path in the file.
"""

from __future__ import annotations

import os
import re
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import msgspec

from topowise import documents, files
from topowise.errors import ConfigError
from topowise.runtime import config_errors

API_VERSION: Final = "topowise.io/v1alpha1"

_UNITS: Final = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+", re.ASCII)
_LONGEST_S: Final = 100 * 365 * 86400
# No duration has a thousand characters, and a decimal of a million digits overflows.
_MAX_TEXT: Final = 1000
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)


class Duration(float):
    """Seconds, written in Go's format of durations: "500ms", "10s", "1m30s"."""

    @classmethod
    def parse(cls, text: object) -> Self:
        """Returns the duration. Raises ValueError unless the text is a Go duration of ms, s, m and h."""
        if text == "0":
            return cls(0)
        if not isinstance(text, str) or len(text) > _MAX_TEXT or not _DURATION.fullmatch(text):
            raise ValueError(f'{text!r:.80} is not a duration such as "500ms", "10s" or "1m30s"')
        seconds = sum((Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(text)), Decimal(0))
        if seconds > _LONGEST_S:
            raise ValueError(f"{text:.80} is longer than 100 years")
        return cls(seconds)

    def __str__(self) -> str:
        """Returns the shortest text that parses to the same number: "1.001s", "0.5ms"."""
        seconds = Decimal(repr(float(self)))
        number, unit = (seconds / _UNITS["ms"], "ms") if 0 < seconds < 1 else (seconds, "s")
        text = f"{number:f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{unit}"


class PositiveDuration(Duration):
    """A pause or time limit, for which 0 makes no sense."""

    @classmethod
    def parse(cls, text: object) -> Self:
        """As Duration.parse; raises ValueError for 0."""
        seconds = super().parse(text)
        if not seconds:
            raise ValueError(f"{text!r:.80} is zero, expected more than 0")
        return seconds


Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
PortOrNone = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A section of a configuration."""


class Logging(Section, frozen=True):
    """Logging of the daemon."""

    format: Literal["text", "json"] = "text"
    """`text` in klog's format, `json` with component-base's keys."""
    verbosity: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0
    """klog's -v: 0 state changes, 2 passes, 4 single objects."""


class ServingTls(Section, frozen=True):
    """Certificates of a port. Changed files are read again."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    """If set, clients must present a certificate signed by this CA."""


class Serving(Section, frozen=True):
    """The port of metrics and health."""

    address: str = "0.0.0.0"
    """An IP address; "127.0.0.1" makes the port local, "::" is every address of both families."""
    port: PortOrNone = 9153
    """0 turns the port off."""
    tls: ServingTls | None = None
    """None: plain HTTP."""


class KubeClient(Section, frozen=True):
    """Access to the API server."""

    kubeconfig: str = ""
    """Path of a kubeconfig; empty: the pod's service account, or outside a pod the kubeconfig of $KUBECONFIG."""


class Configuration(Section, frozen=True, tag_field="kind"):
    """Base of the kinds. A kind's tag is its class name."""

    apiVersion: Literal["topowise.io/v1alpha1"]
    logging: Logging = msgspec.field(default_factory=Logging)
    client: KubeClient = msgspec.field(default_factory=KubeClient)


Kind = TypeVar("Kind", bound=Configuration)


def load(kind: type[Kind], path: str) -> Kind:
    """Returns the configuration in a YAML (or JSON) file. Raises ConfigError with the file and the path inside it."""
    try:
        text = files.read_regular(path)
    except OSError as exc:
        raise ConfigError(path, f"cannot be read: {exc.strerror}") from exc
    return parse(kind, text, source=path)


def parse(kind: type[Kind], text: bytes, *, source: str = "configuration") -> Kind:
    """As `load`, from bytes."""
    try:
        configuration = msgspec.convert(documents.load(text), kind, dec_hook=_decode_other)
    except msgspec.ValidationError as exc:
        raise ConfigError(source, config_errors.explained(kind, str(exc))) from exc
    except documents.DocumentError as exc:
        raise ConfigError(source, f"is not YAML: {exc}") from exc
    if key := documents.repeated_key(text):
        raise ConfigError(source, f"duplicate key {key!r:.80}, expected once: the first value would be ignored")
    return configuration


def default(kind: type[Kind]) -> Kind:
    """Returns the configuration of an empty file."""
    return kind(apiVersion=API_VERSION)


def effective(configuration: Configuration) -> str:
    """Returns the whole configuration with its defaults as a line of JSON, for the first log line."""
    return msgspec.json.encode(configuration, enc_hook=str).decode()


def missing_files(part: Section, path: str = "$") -> list[str]:
    """Returns a line for each named file that cannot be read on this machine."""
    missing = []
    for field in msgspec.structs.fields(part):
        value, where = getattr(part, field.name), f"{path}.{field.encode_name}"
        if isinstance(value, Section):
            missing += missing_files(value, where)
        elif not value or value == field.default:
            # A default path exists inside a pod only.
            continue
        elif (field.name == "kubeconfig" or field.name.endswith("_file")) and not os.access(value, os.R_OK):
            missing.append(f"{value}: cannot be read on this machine - at `{where}`")
    return missing


def _decode_other(kind: type[Any], item: Any) -> Any:
    if issubclass(kind, Duration):
        return kind.parse(item)
    raise AssertionError(f"no decoder for {kind}")
