"""Devices of a pod that are to be near each other on the PCI buses (annotation `topowise.io/device-affinity`).

The kubelet merges NUMA hints, then takes devices within the hint resource by resource: any device, or the devices that
the device plug-in prefers (GetPreferredAllocation). It does not know PCI switches, and no API tells it which devices to
take. So a term is `sure` only where every possible allocation meets it.

- affinity_terms.py: the annotation's terms, and when two devices are near enough;
- choices.py: every allocation that a kubelet may choose, by the kubelet model, and whether a choice can lead to a
  refusal, for pods without the annotation too;
- preferred_allocation.py: what known plug-ins prefer, which narrows the choice;
- outcomes.py: sure, possible, impossible or unknown, and the reason.
"""
