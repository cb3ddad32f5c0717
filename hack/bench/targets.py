"""The upper limits of figures, by the name of the figure. They are for a quiet machine."""

from __future__ import annotations

from typing import Final

_CATALOGUE: Final = "5,000 NRTs and 150,000 pods"
_LARGE_CATALOGUE: Final = "15,000 NRTs and 450,000 pods"

TARGETS: Final = {
    "writes in 15 idle seconds": 0.0,
    "CPU while idle, a sync a second": 0.5,
    "resident memory": 50.0,
    "admission to API server, beyond that, p50": 10.0,
    "restricted, 5 resources: 5,000 nodes cold, p50": 10.0,
    "500 names, 20 shapes: filter, CPU of the service, p50": 0.8,
    "500 names, 20 shapes: prioritize, CPU of the service, p50": 0.5,
    "5,000 names, 20 shapes: filter, CPU of the service, p50": 1.5,
    "15,000 names, 20 shapes: filter, CPU of the service, p50": 4.0,
    "500 names, a whole pod with its bind, events and report: CPU of the service": 2.8,
    "500 NRT updates/s alone: CPU of the service": 20.0,
    f"{_CATALOGUE}: start to ready": 45.0,
    f"{_CATALOGUE}: resident after all of this": 350.0,
    f"{_LARGE_CATALOGUE}: start to ready": 20.0,
    f"{_LARGE_CATALOGUE}: resident after that": 900.0,
}
