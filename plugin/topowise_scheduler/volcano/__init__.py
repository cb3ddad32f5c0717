"""Volcano's extender protocol over HTTP.

Volcano's scheduler calls plug-ins in its own process; its plug-in `extender` passes these calls on, one POST for each
(volcano, pkg/scheduler/plugins/extender, read at ed72c7c of 2026-08-20). wire.py has the bodies, verbs.py the answers,
allocations.py what a session books and gives back, victims.py whom to evict.
"""
