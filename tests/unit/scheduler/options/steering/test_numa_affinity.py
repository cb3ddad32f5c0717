"""The annotation `topowise.io/numa-affinity`."""

from __future__ import annotations

import pytest

from topowise.errors import ParseError
from topowise.pods import Metadata
from topowise_scheduler.options.steering.annotation import PodTerm, pod_terms

METADATA = Metadata(name="a", namespace="ns", labels={"app": "cache"})


def terms(text: str) -> tuple[PodTerm, ...]:
    return pod_terms({"topowise.io/numa-affinity": text}, METADATA)


def test_entries_are_terms_without_duplicates() -> None:
    same, apart = terms("require same: app=cache, tier != back;prefer apart: pod/noisy-0; apart: pod/noisy-0;")
    labels = (("app", "=", "cache"), ("tier", "!=", "back"))
    assert same == PodTerm("require", "same", "ns", labels=labels, selects_itself=True)
    assert apart == PodTerm("prefer", "apart", "ns", "noisy-0")
    assert (str(same), str(apart)) == ("require same: app=cache,tier!=back", "prefer apart: pod/noisy-0")
    assert terms("") == terms("  ") == pod_terms({}, METADATA) == ()


@pytest.mark.parametrize(
    ("text", "name", "labels", "is_selected"),
    [
        ("same: pod/b", "b", {}, True),
        ("same: pod/b", "bb", {}, False),
        ("same: app==cache", "b", {"app": "cache"}, True),
        ("same: app=cache", "b", {"app": "other"}, False),
        ("same: app=", "b", {"app": ""}, True),
        ("same: app=", "b", {}, False),
        ("same: app!=cache", "b", {}, True),
        ("same: app!=cache", "b", {"app": "cache"}, False),
        ("same: example.com/app=cache,tier!=x", "b", {"example.com/app": "cache"}, True),
        ("same: app=cache,tier=x", "b", {"app": "cache"}, False),
    ],
)
def test_pods_are_selected_by_name_or_labels_within_the_namespace(
    text: str, name: str, labels: dict[str, str], is_selected: bool
) -> None:
    (term,) = terms(text)
    assert term.selects("ns", name, labels) is is_selected
    assert not term.selects("other", name, labels)


def test_a_pod_may_select_itself() -> None:
    assert [term.selects_itself for term in terms("same: app=cache; same: pod/a; apart: app=db")] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("app=cache", "entries as"),
        (";", "entries as"),
        ("require: app=cache", "entries as"),
        ("near: app=cache", "entries as"),
        ("always same: app=cache", "entries as"),
        ("require same soon: app=cache", "entries as"),
        ("same:", "1 to 8 labels"),
        ("same: app", "1 to 8 labels"),
        ("same: app in (a,b)", "1 to 8 labels"),
        ("same: app=a=b", "1 to 8 labels"),
        ("same: -app=a", "1 to 8 labels"),
        ("same: app=a/b", "1 to 8 labels"),
        ("same: /app=a", "1 to 8 labels"),
        (f"same: {'k' * 64}=a", "1 to 8 labels"),
        ("same: " + ",".join(f"k{number}=v" for number in range(9)), "1 to 8 labels"),
        ("same: pod/", "the name of a pod"),
        ("same: pod/Other", "the name of a pod"),
        ("same: pod/ns/b", "the name of a pod"),
        ("; ".join(f"same: pod/p{number}" for number in range(9)), "1 to 8 entries"),
        ("same: pod/" + "b" * 1100, "at most 1024 characters"),
    ],
)
def test_other_text_is_an_error_that_names_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(ParseError, match=r"annotation topowise.io/numa-affinity") as error:
        terms(text)
    assert expected in str(error.value)
    assert "the pod is not placed until it is corrected" in str(error.value)
