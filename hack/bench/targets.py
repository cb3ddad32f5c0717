"""The upper limits of figures, by the name of the figure. They are for a quiet machine."""

from __future__ import annotations

from typing import Final

TARGETS: Final = {
    "writes in 15 idle seconds": 0.0,
    "CPU while idle, a sync a second": 0.5,
    "resident memory": 50.0,
    "admission to API server, beyond that, p50": 10.0,
    "5,000 nodes: a new shape of pod": 10.0,
    "500 names, 20 shapes: filter, CPU of the service, p50": 0.8,
    "500 names, 20 shapes: prioritize, CPU of the service, p50": 0.5,
    "5,000 names, 20 shapes: filter, CPU of the service, p50": 1.5,
    "500 names, a whole pod with its bind, events and report: CPU of the service": 2.8,
    "500 NRT updates/s alone: CPU of the service": 20.0,
    "5,000 NRTs and 150,000 pods: start to ready": 45.0,
    "5,000 NRTs and 150,000 pods: resident after all of this": 350.0,
    "15,000 NRTs and 450,000 pods: start to ready": 20.0,
    "15,000 NRTs and 450,000 pods: resident after that": 900.0,
}
