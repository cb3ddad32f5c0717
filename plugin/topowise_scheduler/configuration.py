"""SchedulerConfiguration, the file that `topowise-scheduler serve --config` reads."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from topowise.runtime.config import Configuration, Section, Serving, ServingTls


class Extender(Section, frozen=True):
    """Where kube-scheduler finds us. Beside it in one pod, loopback without TLS is the safest and the fastest."""

    address: str = "127.0.0.1"
    """An IP address; anything but loopback should come with `tls` and a client CA."""
    port: int = 8080
    """Port of the extender; metrics and health have their own."""
    tls: ServingTls | None = None
    """None: plain HTTP."""
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 64 << 20
    """A larger request is refused: 5,000 full Node objects are about 40 MB."""


class ResourceWeight(Section, frozen=True):
    """A resource that counts for the score."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class Scoring(Section, frozen=True):
    """Which of the nodes that fit is better."""

    strategy: Literal["LeastAllocated"] = "LeastAllocated"
    """`LeastAllocated` spreads: the emptier the NUMA node the pod will take, the better (KEP-119)."""
    resources: tuple[ResourceWeight, ...] = (ResourceWeight(name="cpu"), ResourceWeight(name="memory"))
    """Resources that count, if the pod asks for them."""


class SchedulerConfiguration(Configuration, frozen=True, tag="SchedulerConfiguration"):
    """One replica beside each kube-scheduler; all may answer."""

    extender: Extender = msgspec.field(default_factory=Extender)
    scoring: Scoring = msgspec.field(default_factory=Scoring)
    serving: Serving = msgspec.field(default_factory=Serving)
    """Metrics and health."""
