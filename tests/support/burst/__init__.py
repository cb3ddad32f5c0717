"""The test bench of the scheduler service: a cluster of hollow nodes under fire, and what must hold there.

Everything between a pod's creation and its admission is real or decides like the real thing: the service is the process
that is shipped, kube-scheduler's cycles and binds overlap, kubelets take their time, exporters are late.
"""

from burst.bench import Bench, Scenario
from burst.checks import assert_no_refusals, assert_nothing_left_out

__all__ = ["Bench", "Scenario", "assert_no_refusals", "assert_nothing_left_out"]
