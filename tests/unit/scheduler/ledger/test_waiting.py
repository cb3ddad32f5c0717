"""On a full cluster no kubelet refuses a pod that was sent there, and few pods wait for uncertainty alone."""

import pytest

from waiting import Simulation

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("seed", [8, 10, 11])
def test_no_kubelet_refuses_a_sent_pod_and_few_pods_wait_beside_free_resources(seed: int) -> None:
    played = Simulation(seed)
    played.run()
    assert played.decisions > 1000
    assert played.service.ledger.events["prediction_ids"] > 50
    assert played.refused == 0
    assert not played.misplaced
    # Nearly all of them beside a pod whose end its kubelet knows and the API server does not.
    assert played.wrongly_waiting < played.decisions * 0.08


def test_beside_a_scheduler_without_numa_awareness_only_races_are_lost() -> None:
    played = Simulation(30, foreign=0.03)
    played.run()
    assert played.foreign_refused > 10
    assert played.refused <= 1


@pytest.mark.parametrize("seed", [9, 17])
def test_reports_that_come_late_make_pods_wait_and_not_be_refused(seed: int) -> None:
    """A pod that has ended may have been placed elsewhere than predicted, and so may the pods after it. Pods that came
    alone, but after a pod of uncertain placement, were predicted beside its predicted placement."""
    played = Simulation(seed, late=True)
    played.run()
    assert played.decisions > 1000
    assert played.refused == 0
    assert not played.misplaced
