"""On a full cluster: no kubelet refuses whom we let there, and few wait for doubt alone."""

import pytest

from waiting import Simulation


@pytest.mark.parametrize("seed", [8, 10, 11])
def test_no_kubelet_refuses_a_pod_we_sent_there_and_few_wait_beside_room(seed: int) -> None:
    played = Simulation(seed)
    played.run()
    assert played.decisions > 1000
    assert played.service.ledger.events["prediction_hit"] > 50
    assert played.refused == 0
    assert not played.misplaced
    # Nearly all of them beside a pod whose end its kubelet knows and the API server does not.
    assert played.wrongly_waiting < played.decisions * 0.08


def test_beside_another_scheduler_that_knows_nothing_of_numa_only_races_are_lost() -> None:
    played = Simulation(30, foreign=0.03)
    played.run()
    assert played.foreign_refused > 10
    assert played.refused <= 1


@pytest.mark.parametrize("seed", [0, 9, 12, 17])
def test_reports_that_come_late_make_pods_wait_and_not_be_refused(seed: int) -> None:
    """A pod that had gone may have lain elsewhere than predicted, and those after it with it. Pods that came alone, but
    after one that may lie elsewhere, were predicted beside its predicted place."""
    played = Simulation(seed, late=True)
    played.run()
    assert played.decisions > 1000
    assert played.refused == 0
    assert not played.misplaced
