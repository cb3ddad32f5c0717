"""The exporter writes no file and starts no program, so the kernel is told to forbid both (Landlock, Linux 5.13).

The kubelet's root is mounted read-only, but a mount is read-only by itself: other pods' volumes are mounts below it,
come and go with it, and whoever is root may write to them. They cannot be mounted read-only all together, because
Kubernetes does that (`recursiveReadOnly`) only without propagation, and then volumes of other pods could not be
detached. What a process has given up here no capability gets it back.
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
# Executing and writing, then removing and making whatever there is: bits 0, 1 and 4 to 12.
_FIRST: Final = 0b1_1111_1111_0011
# By version: linking and renaming between directories, truncating.
_LATER: Final = {2: 1 << 13, 3: 1 << 14}


def apply() -> bool:
    """Give up writing and executing for this thread, and all that it starts; whether the kernel could."""
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
    """What went wrong, "" for nothing. Rights that are handled and that no rule gives back are gone."""
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
