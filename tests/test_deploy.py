"""docs/deploy says nothing that the program does not do: flags, paths, presets, metrics, times."""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxinfer.cli.serve import command as serve
from jaxinfer.config import config_from_sources
from tests.docs.pages import blocks
from tests.server.fakes import FakeLLM
from tests.server.http import ask

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "docs" / "deploy"


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


@pytest.fixture(scope="module")
def pod(parts) -> dict[str, Any]:
    return parts["Deployment"]["spec"]["template"]["spec"]


def test_the_command_is_one_that_serve_takes(pod):
    verb, *args = pod["containers"][0]["args"]
    assert verb == "serve"
    params = serve.make_context("serve", list(args)).params
    assert config_from_sources(params["config_file"]).config.model == params["model_argument"]
    sleep_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > params["drain_timeout_s"] + sleep_s


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_a_probe_asks_a_path_that_is_open_and_well(pod, probe):
    path = pod["containers"][0][probe]["httpGet"]["path"]
    assert ask(FakeLLM(), "GET", path).status_code == 200


def test_pods_are_added_by_a_metric_that_the_adapter_s_rule_makes_of_one_that_there_is(parts):
    (metric,) = parts["HorizontalPodAutoscaler"]["spec"]["metrics"]
    (shown,) = (block.text for block in blocks("docs/deploy/README.md") if block.language == "yaml")
    (rule,) = yaml.safe_load(shown)["rules"]
    (series,) = re.findall(r'__name__="([^"]+)"', rule["seriesQuery"])
    assert re.search(rf"^{series}{{", ask(FakeLLM(), "GET", "/metrics").text, re.MULTILINE)
    assert re.fullmatch(rule["name"]["matches"], series) and rule["name"]["as"] == metric["pods"]["metric"]["name"]
    labels = {label: f'{label}!=""' in rule["seriesQuery"] for label in rule["resources"]["overrides"]}
    assert labels == {"namespace": True, "pod": True}, "a metric of pods has both, from labels that are asked for"


def test_the_user_is_the_image_s_and_each_volume_is_defined(pod):
    assert f"USER {pod['securityContext']['runAsUser']}\n" in (ROOT / "Dockerfile").read_text()
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_unit_starts_a_command_that_serve_takes_and_waits_for_its_word():
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "jaxinfer.service")
    service = unit["Service"]
    program, verb, *args = service["ExecStart"].split()
    params = serve.make_context("serve", list(args)).params
    assert (service["Type"], verb, Path(program).name) == ("notify", "serve", "jaxinfer")
    assert float(service["TimeoutStopSec"]) > params["drain_timeout_s"]
    assert (
        f"/var/cache/{service['CacheDirectory']}" in service["Environment"] and service["CacheDirectoryMode"] == "0700"
    )


def test_a_tag_makes_a_release_with_the_wheel_of_that_version():
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    commands = [step["run"] for step in flow["jobs"]["wheel"]["steps"] if "run" in step]
    assert flow[True]["push"] == {"tags": ["v*"]} and flow["permissions"] == {"contents": "write"}  # yaml 1.1's `on`
    assert "pip wheel --no-deps --wheel-dir dist ." in commands[0]
    assert commands[1] == 'test -f "dist/jaxinfer-${GITHUB_REF_NAME#v}-py3-none-any.whl"'
    assert commands[-1].startswith('gh release create "$GITHUB_REF_NAME" dist/*.whl')


def test_the_workflow_runs_what_a_change_must_pass():
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["run"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
