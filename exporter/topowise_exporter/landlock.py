"""The exporter writes no file and starts no program, so it lets the kernel forbid both (Landlock, Linux 5.13).

The kubelet's root is mounted read-only, but volumes of other pods are separate mounts below it, and root may write to
them. Kubernetes can mount all of them read-only (`recursiveReadOnly`) only without propagation, and then volumes of
other pods could not be detached. No capability restores a right that a process has dropped here.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Final

from topowise.runtime.log import kv

log = logging.getLogger(__name__)

# include/uapi/linux/landlock.h; the numbers of system calls this young are the same everywhere.
_CREATE_RULESET: Final = 444
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
# Executing and writing, then removing and making entries of all kinds: bits 0, 1 and 4 to 12.
_FIRST: Final = 0b1_1111_1111_0011
# By version: linking and renaming between directories, truncating.
_LATER: Final = {2: 1 << 13, 3: 1 << 14}


def apply() -> bool:
    """Drop the rights to write and execute for this thread and its children; returns whether the kernel could."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    problem = "" if version > 0 else os.strerror(ctypes.get_errno())
    if not problem:
        rights = _FIRST | sum(bit for since, bit in _LATER.items() if version >= since)
        problem = _restrict(libc, rights)
    if problem:
        log.info("Files could be written, as far as mounts allow: no Landlock", extra=kv(why=problem))
    return not problem


def _restrict(libc: ctypes.CDLL, rights: int) -> str:
    """Returns the error, "" if there is none. Handled rights that no rule allows are dropped."""
    attributes = ctypes.c_uint64(rights)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    if ruleset < 0:
        return os.strerror(ctypes.get_errno())
    try:
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, ruleset, 0):
            return os.strerror(ctypes.get_errno())
    finally:
        os.close(ruleset)
    return ""
