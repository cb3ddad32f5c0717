"""Which servers the contract was held against in this run."""

from __future__ import annotations

import pytest

from sandbox import controlplane


def test_the_contract_also_runs_against_a_real_kube_apiserver() -> None:
    where = controlplane.assets()
    if where is None:
        pytest.skip(
            "contract tests ran against the embedded API server only: no etcd and kube-apiserver in "
            "$KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin"
        )
    assert (where / "kube-apiserver").exists()
