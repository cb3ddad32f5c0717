"""Names in paths stay names."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from topowise.errors import ApiError
from topowise.kube import paths


def test_a_name_of_kubernetes_is_written_as_it_is() -> None:
    assert paths.pod("kube-system", "a.b-1", "binding") == "/api/v1/namespaces/kube-system/pods/a.b-1/binding"
    # A port behind a name is how the API server's proxy is asked.
    assert paths.pod("n", "p:9153", "proxy", "metrics") == "/api/v1/namespaces/n/pods/p:9153/proxy/metrics"


@given(st.text(st.characters(exclude_characters="/%", exclude_categories=("C",))).filter(lambda name: name.strip(".")))
def test_any_other_name_is_one_part_of_the_path_and_nothing_else(name: str) -> None:
    url = URL("http://server" + paths.path("/things", name, "status"), encoded=True)
    assert (url.raw_query_string, url.raw_fragment) == ("", "")
    _, collection, part, below = url.raw_path.split("/")
    assert (collection, unquote(part), below) == ("things", name, "status")


@pytest.mark.parametrize("name", ["", ".", "..", "a/status", "../b", "a%2Fstatus"])
def test_a_part_that_leads_elsewhere_is_refused_as_the_server_would(name: str) -> None:
    with pytest.raises(ApiError, match=f"{name!r} is not a valid name") as refused:
        paths.pod("default", name)
    assert refused.value.status == 400
