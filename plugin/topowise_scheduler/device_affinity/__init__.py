"""Devices that a pod wishes to have near each other on the PCI buses, and whether a node will give it such ones.

The kubelet merges NUMA hints, then takes devices inside them resource by resource: any of them, or those that the
device plug-in prefers among them (GetPreferredAllocation). Nothing tells it of PCI switches, and nothing can tell it
which devices to take. So a wish is `sure` only where every choice that it may make meets it:

- affinity_terms.py: what a pod may write, and when two devices are near enough;
- choices.py: all that a kubelet may choose, by the one-node model;
- preferred_allocation.py: what known plug-ins prefer, which narrows it;
- outcomes.py: sure, possible, impossible or unknown, and in which words;
- refusal_risk.py: whether such a choice may come to a refusal, which concerns pods without a wish too.
"""

from topowise_scheduler.device_affinity.affinity_terms import ANNOTATION, Wish, read, wishes_of
from topowise_scheduler.device_affinity.outcomes import Admits, Devices, Judged, Outcome, Settings, judge, observed
from topowise_scheduler.device_affinity.preferred_allocation import Rule
from topowise_scheduler.device_affinity.refusal_risk import may_refuse

__all__ = [
    "ANNOTATION",
    "Admits",
    "Devices",
    "Judged",
    "Outcome",
    "Rule",
    "Settings",
    "Wish",
    "judge",
    "may_refuse",
    "observed",
    "read",
    "wishes_of",
]
