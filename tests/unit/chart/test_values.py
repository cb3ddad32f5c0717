"""values.yaml, its schema, the recipes, and the configurations that they make."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from scheduling import Service
from topowise import __version__
from topowise.kube.credentials import NAMESPACE
from topowise.runtime import config
from topowise_exporter.configuration import ExporterConfiguration
from topowise_scheduler.configuration import SchedulerConfiguration
from volcano import serving

Document = dict[str, Any]


@pytest.fixture(scope="module")
def schema(chart: Path) -> jsonschema.Draft7Validator:
    document = json.loads((chart / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(document)
    return jsonschema.Draft7Validator(document)


def merged(base: Document, over: Document) -> Document:
    """As Helm merges values: maps by key, everything else replaced."""
    result = copy.deepcopy(base)
    for name, value in over.items():
        inner = result.get(name)
        result[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def test_the_chart_is_of_the_version_of_the_code(chart: Path) -> None:
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert about["apiVersion"] == "v2"
    assert about["appVersion"] == about["version"] == __version__


def test_values_keep_the_schema(schema: jsonschema.Draft7Validator, values: Document) -> None:
    schema.validate(values)


def test_the_schema_names_every_value_and_no_other(values: Document, chart: Path) -> None:
    document = json.loads((chart / "values.schema.json").read_text())

    def compare(here: str, part: Document, default_values: Document) -> None:
        while "$ref" in part:
            part = document["$defs"][part["$ref"].rpartition("/")[2]]
        if "properties" not in part or here.endswith(".config"):
            return
        assert part["additionalProperties"] is False, here
        optional = {"global"} if not here else {"digest", "limits", "claims", "name", "kind", "group"}
        assert set(default_values) <= set(part["properties"]), here
        assert set(part["properties"]) - set(default_values) <= optional, here
        for name, value in default_values.items():
            if isinstance(value, dict):
                compare(f"{here}.{name}", part["properties"][name], value)

    compare("", document, values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"exporters": {}},
        {"exporter": {"config": {"sysfsroot": "/sys"}}},
        {"exporter": {"config": {"interval": "1s"}}},
        {"exporter": {"config": {"kind": "ExporterConfiguration"}}},
        {"scheduler": {"config": {"scoring": {"strategy": "Tight"}}}},
        {"scheduler": {"config": {"filter": {"maxAdmissionTime": "1 s"}}}},
        {"scheduler": {"mode": "sidecar"}},
        {"scheduler": {"extender": {"weight": 0}}},
        {"scheduler": {"extender": {"managedResources": [{"name": "cpu"}]}}},
        {"image": {"digest": "latest"}},
        {"monitoring": {"monitor": {"kind": "Probe"}}},
    ],
    ids=json.dumps,
)
def test_the_schema_refuses(schema: jsonschema.Draft7Validator, values: Document, wrong: Document) -> None:
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(merged(values, wrong))


def test_recipes_keep_the_schema(
    schema: jsonschema.Draft7Validator, values: Document, recipes: dict[str, Document]
) -> None:
    assert recipes
    for recipe in recipes.values():
        schema.validate(merged(values, recipe))


def test_the_daemons_understand_the_committed_configmaps(default: Any) -> None:
    exporter = default.named("ConfigMap", "topowise-exporter")["data"]["exporter.yaml"]
    settings = config.parse(ExporterConfiguration, exporter.encode())
    assert settings.sysfs_root == "/host/sys"
    scheduler = default.named("ConfigMap", "topowise-scheduler")["data"]["scheduler.yaml"]
    assert config.parse(SchedulerConfiguration, scheduler.encode()).leader_election.enabled


def test_the_static_pod_of_the_recipe_is_of_one_piece(chart: Path) -> None:
    folder = chart / "recipes/kubeadm"
    settings = config.load(SchedulerConfiguration, str(folder / "scheduler.yaml"))
    kube_scheduler = yaml.safe_load((folder / "kube-scheduler.yaml").read_text())
    (extender,) = kube_scheduler["extenders"]
    assert extender["urlPrefix"] == f"http://{settings.extender.address}:{settings.extender.port}"
    assert settings.client.kubeconfig == kube_scheduler["clientConnection"]["kubeconfig"]
    manifest = yaml.safe_load((folder / "topowise-scheduler.yaml").read_text())
    pod = manifest["spec"]["containers"][0]
    assert pod["image"].endswith(f":{__version__}")
    assert pod["readinessProbe"]["httpGet"]["port"] == settings.serving.port
    recipe = yaml.safe_load((chart / "recipes/kubeadm-static-pod.yaml").read_text())["scheduler"]
    assert settings.leader_election.enabled
    assert recipe["static"]["leaseNamespace"] == manifest["metadata"]["namespace"]
    (variable,) = pod["env"]
    assert variable == {"name": NAMESPACE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}


def test_the_sidecar_of_the_volcano_recipe_is_of_one_piece(chart: Path) -> None:
    folder = chart / "recipes/volcano"
    settings = config.load(SchedulerConfiguration, str(folder / "scheduler.yaml"))
    assert settings.volcano.enabled
    tiers = yaml.safe_load((folder / "volcano-scheduler.conf").read_text())["tiers"]
    first = [plugin["name"] for plugin in tiers[0]["plugins"]]
    # Who is asked before it, and whose victims are passed on.
    assert first.index("extender") > first.index("predicates")
    assert first.index("extender") > first.index("conformance")
    arguments = tiers[0]["plugins"][first.index("extender")]["arguments"]
    assert arguments.pop("extender.urlPrefix") == f"http://{settings.extender.address}:{settings.extender.port}/volcano"
    verbs = {value for name, value in arguments.items() if name.endswith("Verb")}
    assert verbs == serving(Service()).keys() - {"onSessionOpen", "onSessionClose"}
    pod = yaml.safe_load((folder / "volcano-scheduler.yaml").read_text())["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"].endswith(f":{__version__}")
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["port"] == settings.serving.port
    recipe = yaml.safe_load((chart / "recipes/volcano-extender.yaml").read_text())["scheduler"]
    assert recipe["static"]["user"].endswith(":volcano-scheduler")
    assert (recipe["config"]["requeue"]["enabled"], settings.requeue.enabled) == (False, False)
