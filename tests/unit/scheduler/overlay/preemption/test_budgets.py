"""Which PodDisruptionBudgets an eviction counts against."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topowise_scheduler.ledger.budgets import Budget, BudgetMetadata, Budgets, BudgetSpec, LabelSelector, decode_budget


def _budget(
    selector: Any, name: str = "pdb", namespace: str = "default", status: dict[str, Any] | None = None
) -> Budget:
    document = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace, "generation": 1},
        "spec": {"minAvailable": "50%", "selector": selector},
        "status": status,
    }
    return decode_budget(msgspec.json.encode(document))


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": None, "matchExpressions": []}, True),
        ({"matchLabels": {"app": "db"}}, True),
        ({"matchLabels": {"app": "web"}}, False),
        ({"matchLabels": {"app": "db", "tier": "back"}}, False),
        (_expression("app", "In", "web", "db"), True),
        (_expression("app", "In", "web"), False),
        (_expression("tier", "In", ""), False),
        (_expression("app", "NotIn", "web"), True),
        (_expression("app", "NotIn", "db"), False),
        (_expression("tier", "NotIn", "back"), True),
        (_expression("app", "Exists"), True),
        (_expression("tier", "Exists"), False),
        (_expression("tier", "DoesNotExist"), True),
        (_expression("app", "DoesNotExist"), False),
        ({"matchLabels": {"app": "db"}} | _expression("app", "NotIn", "db"), False),
    ],
)
def test_a_selector_matches_as_in_policy_v1(selector: Any, selects: bool) -> None:
    assert Budgets([_budget(selector)]).matching("db-0", "default", {"app": "db"}) == (
        ("default/pdb",) if selects else ()
    )


@pytest.mark.parametrize(
    "selector",
    [
        _expression("app", "In"),
        _expression("app", "NotIn"),
        _expression("app", "Exists", "db"),
        _expression("app", "Gt", "1"),
    ],
)
def test_an_invalid_selector_selects_nothing(selector: Any) -> None:
    assert Budgets([_budget(selector)]).matching("db-0", "default", {"app": "db"}) == ()


def test_an_empty_selector_selects_pods_without_labels_too() -> None:
    # As in kubernetes#141785; before, kube-scheduler ignored empty selectors and pods without labels.
    assert Budgets([_budget({})]).matching("bare", "default", {}) == ("default/pdb",)


def test_a_budget_protects_its_own_namespace_only() -> None:
    assert Budgets([_budget({})]).matching("db-0", "other", {"app": "db"}) == ()


def test_a_pod_may_have_several_budgets() -> None:
    budgets = [_budget({}, "all"), _budget({"matchLabels": {"app": "web"}}, "web"), _budget({}, "more")]
    assert Budgets(budgets).matching("db-0", "default", {"app": "db"}) == ("default/all", "default/more")


def test_a_pod_whose_eviction_was_granted_does_not_count_again() -> None:
    budget = _budget({}, status={"disruptionsAllowed": 0, "disruptedPods": {"db-0": "2026-01-01T00:00:00Z"}})
    assert Budgets([budget]).matching("db-0", "default", {"app": "db"}) == ()
    assert Budgets([budget]).matching("db-1", "default", {"app": "db"}) == ("default/pdb",)


@pytest.mark.parametrize(
    ("status", "allowed"), [(None, 0), ({}, 0), ({"disruptionsAllowed": 2}, 2), ({"disruptionsAllowed": -1}, -1)]
)
def test_a_budget_without_a_status_allows_nothing(status: dict[str, Any] | None, allowed: int) -> None:
    assert _budget({}, status=status).allowed == allowed


def test_a_budget_without_optional_fields_decodes() -> None:
    bare = decode_budget(b'{"metadata":{"name":"pdb","namespace":"default"}}')
    assert Budgets([bare]).matching("db-0", "default", {"app": "db"}) == ()


def test_a_pod_is_compared_only_with_budgets_that_select_a_label_of_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [
        Budget(BudgetMetadata(f"b{number}", "default"), BudgetSpec(LabelSelector(matchLabels={"app": f"a{number}"})))
        for number in range(1000)
    ]
    budgets, compared, counts = Budgets(many), [], Budget.counts
    monkeypatch.setattr(Budget, "counts", lambda budget, *pod: compared.append(budget.key) or counts(budget, *pod))
    assert budgets.matching("p", "default", {"app": "a7", "tier": "x"}) == ("default/b7",)
    assert compared == ["default/b7"]


def test_a_changed_or_deleted_budget_matches_by_its_current_selector() -> None:
    def selecting(value: str) -> Budget:
        return Budget(BudgetMetadata("b", "default"), BudgetSpec(LabelSelector(matchLabels={"app": value})))

    budgets = Budgets([selecting("x")])
    budgets.apply("MODIFIED", selecting("y"))
    assert budgets.matching("p", "default", {"app": "x"}) == ()
    assert budgets.matching("p", "default", {"app": "y"}) == ("default/b",)
    budgets.apply("DELETED", selecting("y"))
    assert budgets.matching("p", "default", {"app": "y"}) == ()
    assert list(budgets.replace([selecting("z")]))
    assert budgets.matching("p", "default", {"app": "z"}) == ("default/b",)
