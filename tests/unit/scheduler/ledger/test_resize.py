"""Pods that are resized in place (KEP-1287): the ledger follows the kubelet's allocation, not the request."""

import pytest

from scheduling import decoded, pod
from stories import table, tell
from topowise import pods


@table("""
a pod that has grown takes more at once, and the report that shows it is believed
    # Until then it may be on either zone.
    resized a 1 1; exact a:1; sum 6; resized a 3 3; sum 4; fits 4 not n1; exact a:3; sum 4; fits 4 n1
a report written before the kubelet has resized does not undo it
    resized a 1 1; exact a:1; resized a 3 3; exact a:1 b:1; sum 3; exact a:3 b:1; sum 3
a resize that is not granted changes nothing
    resized a 1 1; exact a:1; resized a 3 1; sum 6
a service that starts in the middle books what is allocated
    exact; resized a 3 1 news=no; sum 6
a pod that has shrunk returns resources
    resized a 3 3; exact a:3; resized a 1 1; sum 6; exact a:1; sum 6
a resize that no report ever shows is forgotten
    resized a 1 1; exact a:1; resized a 3 3; wait 121; sum 6
a resize of what belongs to no zone leaves the report alone
    resized a 500m 500m; exact a:500m; free 3 4; resized a 700m 700m; listed a; free 3 4
growth is booked until the next report of counts with the pod in it
    counts 7 of=a version=1; resized a 1 1; free 7; resized a 3 3; free 4; counts 5 of=a version=2; free 5
""")
def test_the_ledger_follows_the_allocation(story: str) -> None:
    tell(story)


class TestAllocated:
    def test_a_sidecar_can_be_resized(self) -> None:
        document = pod("a", "1", node="n1")
        document["spec"]["initContainers"] = [
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
        ]
        document["status"]["initContainerStatuses"] = [{"name": "s", "allocatedResources": {"cpu": "2"}}]
        needs = pods.needs(pods.allocated(decoded(document)))
        assert needs.containers[0].requests == {"cpu": 2000}
        assert needs.containers[0].limits == {"cpu": 2000}

    @pytest.mark.parametrize("spelled", ["1", "1000m", "1.0"])
    def test_another_spelling_of_the_same_amount_is_no_difference(self, spelled: str) -> None:
        document = pod("a", "1", node="n1")
        document["status"]["containerStatuses"] = [
            {"name": "c", "allocatedResources": {"cpu": spelled, "memory": "1Gi"}}
        ]
        converted = decoded(document)
        assert pods.allocated(converted) is converted

    def test_without_allocated_resources_in_the_status_the_spec_counts(self) -> None:
        converted = decoded(pod("a", "1", node="n1"))
        assert pods.allocated(converted) is converted

    def test_resources_of_the_pod_itself(self) -> None:
        document = pod("a", "1", node="n1")
        document["spec"]["resources"] = {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}
        document["status"]["allocatedResources"] = {"cpu": "2"}
        needs = pods.needs(pods.allocated(decoded(document)))
        assert needs.pod_level is not None
        assert needs.pod_level.requests["cpu"] == 2000
