"""Valid documents are read, even if they resemble hostile documents (which are in tests/unit/fuzz)."""

from __future__ import annotations

import pytest

from topowise import documents, kubeletconfig

HEAD = b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

# Many two-socket servers number CPUs alternately, so a node's CPU list has no ranges.
EVERY_SECOND = ",".join(map(str, range(0, 1024, 2)))


def test_a_long_list_of_ids_is_no_number() -> None:
    text = HEAD + f"reservedSystemCPUs: {EVERY_SECOND}\n".encode()
    assert len(kubeletconfig.parse(text).reserved_cpus) == 512
    value = {"attributes": [{"name": "topowise.io/cpus", "value": EVERY_SECOND}]}
    assert documents.load(f"attributes:\n- name: topowise.io/cpus\n  value: {EVERY_SECOND}\n") == value


@pytest.mark.parametrize("text", ["-" * 500, "2 times " * 100, ".com" * 200, "0.1.2.3 " * 100])
def test_long_texts_that_begin_as_numbers_do_are_texts(text: str) -> None:
    assert documents.load(f"note: {text}\n") == {"note": text.strip()}


@pytest.mark.parametrize(
    ("text", "value"),
    [("y", True), ("N", False), ("On", True), ("yess", "yess"), ("1e3", 1000), ("1.5e3", 1500), ("0.5", 0.5),
     ("1.0", 1), ("010", 8), ("0o10", 8), ("08", 8), ("-0x1F", -31), ("0b101", 5), ("1_000", 1000), ("1:30", "1:30"),
     (".5", 0.5), ("2001-01-01", "2001-01-01"), ("~", None), ("'1'", "1"), ("1e", "1e"), ("0,2", "0,2")],
)  # fmt: skip
def test_scalars_are_those_of_kubernetes(text: str, value: object) -> None:
    """As sigs.k8s.io/yaml converts them to JSON; judged by kubelet 1.36.2."""
    read = documents.load(f"v: {text}\n")["v"]
    assert (read, type(read)) == (value, type(value))


def test_anchors_aliases_and_merge_keys_are_read_as_the_kubelet_reads_them() -> None:
    text = HEAD + b"systemReserved: &all {memory: 1Gi, cpu: 500m}\nkubeReserved:\n  <<: *all\n  cpu: '1'\n"
    config = kubeletconfig.parse(text)
    assert config.reserved({"memory": 0})["cpu"] == 1500
    assert config.kubeReserved == {"memory": "1Gi", "cpu": "1"}


@pytest.mark.parametrize("text", ["---\na: 1\n", "a: 1\n---\n", "---\n# nothing\n---\na: 1\n...\n"])
def test_separators_with_nothing_behind_them_make_no_documents(text: str) -> None:
    assert documents.load(text) == {"a": 1}
