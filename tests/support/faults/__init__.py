"""Faults around the daemons, which run as shipped: the faults affect their connections, files and clocks."""

from faults.logs import assert_said_once
from faults.proxy import HALF_LINE, MID_CHUNK, Fault, FaultProxy
from faults.usage import Usage, usage

__all__ = ["HALF_LINE", "MID_CHUNK", "Fault", "FaultProxy", "Usage", "assert_said_once", "usage"]
