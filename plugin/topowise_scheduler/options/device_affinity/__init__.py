"""Devices of a pod that are to be near each other on the PCI buses (annotation `topowise.io/device-affinity`).

The kubelet merges NUMA hints, then takes devices within the hint resource by resource: any device, or the devices that
the device plug-in prefers (GetPreferredAllocation). It does not know PCI switches, and no API tells it which devices to
take. So a term is `sure` only where every possible allocation meets it.

- affinity_terms.py: the annotation's terms, and when two devices are near enough;
- choices.py: every allocation that a kubelet may choose, by the kubelet model;
- preferred_allocation.py: what known plug-ins prefer, which narrows the choice;
- outcomes.py: sure, possible, impossible or unknown, and the reason;
- refusal_risk.py: whether a choice can lead to a refusal, for pods without the annotation too.
"""

from typing import Final

from topowise_scheduler.ledger.pods.demands import Reader
from topowise_scheduler.options.device_affinity.affinity_terms import ANNOTATION, AffinityTerm, read, terms_of
from topowise_scheduler.options.device_affinity.outcomes import (
    NO_TERMS,
    Admits,
    AffinityVerdict,
    DeviceAffinity,
    Devices,
    Outcome,
    Settings,
    judge,
    observed,
)
from topowise_scheduler.options.device_affinity.preferred_allocation import Rule
from topowise_scheduler.options.device_affinity.refusal_risk import may_refuse

READER: Final = Reader(
    frozenset((ANNOTATION,)),
    frozenset(),
    lambda annotations, metadata, needs: DeviceAffinity(terms_of(annotations, needs)),
)

__all__ = [
    "ANNOTATION",
    "NO_TERMS",
    "READER",
    "Admits",
    "AffinityTerm",
    "AffinityVerdict",
    "DeviceAffinity",
    "Devices",
    "Outcome",
    "Rule",
    "Settings",
    "judge",
    "may_refuse",
    "observed",
    "read",
    "terms_of",
]
