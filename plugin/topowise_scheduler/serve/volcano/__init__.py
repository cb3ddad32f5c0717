"""Volcano's extender protocol over HTTP.

Volcano's scheduler runs plug-ins in its own process. Its plug-in `extender` forwards the calls of some callbacks, each
as a POST (volcano, pkg/scheduler/plugins/extender, read at ed72c7c of 2026-08-20). wire.py defines the bodies, verbs.py
answers, allocations.py books what a session allocates, and chooses victims.
"""
