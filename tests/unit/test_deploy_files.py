"""The files in `deploy` are valid, and agree with the worker that they start."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from imagefleet.producer.commands.exporter import exporter
from imagefleet.producer.commands.serve import serve
from imagefleet.producer.gateway.gateway_settings import GatewaySettings
from imagefleet.producer.gateway.serve import END_WITHIN_S
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.settings.settings import ENV_PREFIX
from imagefleet.worker.engine.compile.private_folder import make_private
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.drain import DRAIN_GRACE_S
from tests.support.processes import ROOT

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/imagefleet-worker.service"
UNITS = (UNIT, DEPLOY / "systemd/imagefleet-gateway.service")
_CUSTOM = {"ScaledObject", "PodMonitor", "PrometheusRule", "Kustomization", "Component"}
"""Kinds that Kubernetes itself does not define."""
_KUBERNETES = "1.31"


def _load(text: str) -> list[Any]:
    return list(YAML(typ="safe").load_all(text))


def _documents() -> list[Any]:
    files = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
    return [document for file in files for document in _load(file.read_text())]


def _named(kind: str, name: str) -> Any:
    [found] = [
        each
        for each in _documents()
        if each["kind"] == kind and each.get("metadata", {}).get("name") == name
    ]
    return found


@pytest.mark.parametrize("document", _documents(), ids=lambda each: each["kind"])
def test_kubernetes_knows_every_field(document: dict[str, Any]) -> None:
    if document["kind"] not in _CUSTOM:
        kubernetes_validate.validate(document, _KUBERNETES, strict=True)


def test_the_validator_refuses_what_is_wrong() -> None:
    wrong = _named("Deployment", "worker")
    wrong["spec"]["template"]["spec"]["containers"][0]["imag"] = "imagefleet"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, _KUBERNETES, strict=True)


def _build(overlay: str) -> dict[tuple[str, str], Any]:
    """Return what Kustomize builds, by kind and name."""
    return _build_folder(DEPLOY / "kubernetes" / overlay)


def _build_folder(folder: Path) -> dict[tuple[str, str], Any]:
    built = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {(each["kind"], each["metadata"]["name"]): each for each in _load(built)}


_needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is missing")


@_needs_kubectl
@pytest.mark.parametrize(
    ("overlay", "chips", "topology"),
    [("v5e-8", "8", "2x4"), ("v5e-16", "4", "4x4"), ("autoscale", "8", "2x4")],
)
def test_kustomize_builds_the_overlays(overlay: str, chips: str, topology: str) -> None:
    documents = _build(overlay)
    for document in documents.values():
        if document["kind"] not in _CUSTOM:
            kubernetes_validate.validate(document, _KUBERNETES, strict=True)
    worker = documents["Deployment", "worker"]
    pod = worker["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    assert "ephemeral-storage" in container["resources"]["requests"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    assert container["image"] == "registry.example.com/imagefleet:0.2.0"
    settings = container["envFrom"][0]["configMapRef"]["name"]
    variables = documents["ConfigMap", settings]["data"]
    assert variables["JAX_PLATFORMS"] == "tpu,cpu"  # without a TPU the worker must not start
    assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", variables["IMAGEFLEET_MODEL"])
    names = variables.keys() - {"JAX_PLATFORMS", "HF_HOME"}
    assert ("replicas" in worker["spec"]) == (overlay != "autoscale")
    assert {name.removeprefix("IMAGEFLEET_").lower() for name in names} <= set(
        WorkerSettings.model_fields
    )


def test_the_alerts_know_the_targets_of_the_pod_monitor_by_their_job() -> None:
    label = _named("PodMonitor", "imagefleet")["spec"]["jobLabel"]
    [expression] = _named("PodMonitor", "imagefleet")["spec"]["selector"]["matchExpressions"]
    names = ("worker", "exporter", "gateway")
    pods = [_named("Deployment", name)["spec"]["template"] for name in names]
    jobs = [pod["metadata"]["labels"][label] for pod in pods]
    assert sorted(jobs) == sorted(expression["values"])
    [regex] = re.findall(r'up{job=~"([^"]+)"}', (DEPLOY / "prometheus/alerts.yml").read_text())
    assert all(re.fullmatch(regex, job) for job in jobs)


@_needs_kubectl
def test_a_fleet_that_starts_from_nothing_has_time_before_it_pages() -> None:
    rules = _build("autoscale")["PrometheusRule", "imagefleet"]["spec"]["groups"][0]["rules"]
    [group] = _named("PrometheusRule", "imagefleet")["spec"]["groups"]
    patient = {"ImagefleetNoWorker", "ImagefleetModelWithoutWorker"}
    expected = [
        {**rule, "for": "30m"} if rule["alert"] in patient else rule for rule in group["rules"]
    ]
    assert rules == expected


@_needs_kubectl
def test_a_worker_of_a_multi_host_slice_has_the_chips_of_its_host_only() -> None:
    pod = _build("v5e-16")["Deployment", "worker"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    chips = int(container["resources"]["limits"]["google.com/tpu"])
    bounds = [int(each) for each in variables["TPU_CHIPS_PER_PROCESS_BOUNDS"].split(",")]
    assert math.prod(bounds) == chips
    assert variables["TPU_VISIBLE_CHIPS"] == ",".join(map(str, range(chips)))
    assert variables["TPU_PROCESS_BOUNDS"] == "1,1,1"
    assert variables["CLOUD_TPU_TASK_ID"] == variables["TPU_WORKER_ID"] == "0"
    assert variables["TPU_WORKER_HOSTNAMES"] == "localhost"
    [term] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"


def _pod(documents: dict[tuple[str, str], Any], name: str) -> Any:
    return documents["Deployment", name]["spec"]["template"]["spec"]


@_needs_kubectl
def test_the_caches_of_a_worker_lie_in_a_volume_and_belong_to_its_user() -> None:
    documents = _build("v5e-8")
    pod = _pod(documents, "worker")
    [settings] = [each["data"] for each in documents.values() if each["kind"] == "ConfigMap"]
    [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "cache"]
    assert {"name": "cache", "emptyDir": {}} in pod["volumes"]
    folders = [settings["IMAGEFLEET_CACHE_DIR"], settings["HF_HOME"]]
    assert all(Path(folder).parent == Path(mount["mountPath"]) for folder in folders)
    [_, _, script] = pod["initContainers"][0]["command"]
    user = pod["securityContext"]["runAsUser"]
    assert script.endswith(f" -o {user} -g {user} {' '.join(folders)}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_the_first_container_makes_folders_in_which_a_worker_accepts_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)  # as an emptyDir
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    with pytest.raises(ConfigurationError, match="could run code in this worker"):
        make_private(cache / "programs")
    pod = _named("Deployment", "worker")["spec"]["template"]["spec"]
    [shell, option, script] = pod["initContainers"][0]["command"]
    for _ in range(2):  # also when the pod is started again
        command = [shell, option, script.replace("/cache", str(cache))]
        subprocess.run(command, check=True)
    make_private(cache / "programs")
    assert (cache / "hub").stat().st_uid == 10001
    assert (cache / "hub").stat().st_mode & 0o777 == 0o700


@_needs_kubectl
@pytest.mark.parametrize("overlay", ["v5e-8", "v5e-16", "autoscale"])
def test_a_worker_that_runs_as_root_has_no_capability_and_its_own_caches(
    tmp_path: Path, overlay: str
) -> None:
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes/mine"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(
        f"resources: [../{overlay}]\ncomponents: [../root-worker, ../monitoring]\n"
        if overlay != "autoscale"  # it has the monitoring
        else f"resources: [../{overlay}]\ncomponents: [../root-worker]\n"
    )
    documents = _build_folder(folder)
    pod = _pod(documents, "worker")
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": False,
        "runAsUser": 0,
        "runAsGroup": 0,
    }
    assert " -o 0 -g 0 " in pod["initContainers"][0]["command"][2]
    assert ("PrometheusRule", "imagefleet") in documents
    assert _pod(documents, "exporter")["securityContext"]["runAsNonRoot"]


@_needs_kubectl
@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is missing")
def test_the_guide_makes_a_job_of_the_worker_that_runs_the_doctor() -> None:
    guide = (ROOT / "docs/deploy-gke.md").read_text()
    [program] = re.findall(r"\| jq '(\{.*?)' *\\$", guide, re.DOTALL | re.MULTILINE)
    worker = json.dumps(_build("v5e-8")["Deployment", "worker"])
    made = subprocess.run(["jq", program], input=worker, capture_output=True, text=True, check=True)
    job = json.loads(made.stdout)
    kubernetes_validate.validate(job, _KUBERNETES, strict=True)
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["doctor"]
    assert "livenessProbe" not in container
    assert container["resources"]["limits"] == {"google.com/tpu": "8"}


@_needs_kubectl
def test_the_overlay_of_the_guide_can_be_built(tmp_path: Path) -> None:
    guide = (ROOT / "docs/deploy-gke.md").read_text()
    [overlay] = [
        block
        for block in re.findall(r"^```yaml\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
        if "kind: Kustomization" in block
    ]
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    (tmp_path / "kubernetes/mine").mkdir()
    (tmp_path / "kubernetes/mine/kustomization.yaml").write_text(overlay)
    documents = _build_folder(tmp_path / "kubernetes/mine")
    pod = _pod(documents, "worker")
    images = {each["image"] for each in (*pod["containers"], *pod["initContainers"])}
    assert images == {"us-west4-docker.pkg.dev/my-project/imagefleet/imagefleet:0.2.0"}
    [settings] = [each["data"] for each in documents.values() if each["kind"] == "ConfigMap"]
    assert settings["IMAGEFLEET_STORAGE_URL"] == "gs://my-imagefleet/images"


def test_the_policy_selects_the_pods_of_the_fleet_only() -> None:
    selector = _named("NetworkPolicy", "metrics-only")["spec"]["podSelector"]
    [expression] = selector["matchExpressions"]
    pods = [_named("Deployment", name)["spec"]["template"] for name in ("worker", "exporter")]
    labels = [pod["metadata"]["labels"][expression["key"]] for pod in pods]
    assert sorted(labels) == sorted(expression["values"])


def test_the_exporter_counts_jobs_for_the_model_of_its_workers() -> None:
    [container] = _named("Deployment", "exporter")["spec"]["template"]["spec"]["containers"]
    assert container["command"][-2:] == ["--model", "$(IMAGEFLEET_MODEL)"]
    assert "IMAGEFLEET_MODEL" in [variable["name"] for variable in container["env"]]
    arguments = container["command"][2:]
    exporter.make_context("exporter", arguments)  # it fails at an option that does not exist


def test_every_grace_period_is_longer_than_a_drain() -> None:
    setting = r"IMAGEFLEET_DRAIN_S=(\d+)$"
    [drain_s] = re.findall(
        setting, (DEPLOY / "kubernetes/base/kustomization.yaml").read_text(), re.M
    )
    pod = _named("Deployment", "worker")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > int(drain_s) + DRAIN_GRACE_S
    told = r"IMAGEFLEET_STOP_TIMEOUT_S=(\d+)$"
    settings = (DEPLOY / "kubernetes/base/kustomization.yaml").read_text()
    assert re.findall(told, settings, re.M) == [str(pod["terminationGracePeriodSeconds"])]
    [drain_s] = re.findall(setting, UNIT.read_text(), re.M)
    [stop_s] = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(stop_s) > int(drain_s) + DRAIN_GRACE_S
    assert re.findall(told, UNIT.read_text(), re.M) == [stop_s]


def test_a_drain_on_a_spot_node_ends_before_the_node() -> None:
    overlay = (DEPLOY / "kubernetes/v5e-8/kustomization.yaml").read_text()
    [drain_s] = re.findall(r"IMAGEFLEET_PREEMPTED_DRAIN_S=(\d+)$", overlay, re.M)
    assert int(drain_s) + DRAIN_GRACE_S < 15


def test_pods_get_the_rights_that_they_use_and_no_other() -> None:
    rights = {"worker": ["get"], "exporter": ["patch"]}  # what `Pods` documents
    for name, verbs in rights.items():
        assert _named("Role", name)["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "verbs": verbs}
        ]
        assert _named("RoleBinding", name)["subjects"] == [{"kind": "ServiceAccount", "name": name}]
    pods = {name: _named("Deployment", name)["spec"]["template"]["spec"] for name in rights}
    assert pods["worker"]["serviceAccountName"] == "worker"
    assert pods["worker"]["automountServiceAccountToken"] is True
    assert pods["exporter"]["automountServiceAccountToken"] is False


@_needs_kubectl
def test_an_exporter_that_writes_deletion_costs_has_a_token_and_the_option() -> None:
    pod = _pod(_build("autoscale"), "exporter")
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("exporter", True)
    arguments = pod["containers"][0]["command"][2:]
    assert exporter.make_context("exporter", arguments).params["deletion_costs"] is True


def test_two_gateways_serve_and_end_one_after_the_other() -> None:
    deployment = _named("Deployment", "gateway")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    arguments = serve.make_context("serve", container["command"][2:]).params
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert arguments["port"] == ports["http"]
    assert variables["IMAGEFLEET_HTTP_METRICS_PORT"] == str(ports["metrics"])
    ours = {name for name in variables if name.startswith(ENV_PREFIX)}
    assert ours <= {ENV_PREFIX + name.upper() for name in GatewaySettings.model_fields}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    waits_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > waits_s + END_WITHIN_S + 1
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (
        deployment["selector"]["matchLabels"],
        _named("Service", "gateway")["spec"]["selector"],
        _named("PodDisruptionBudget", "gateway")["spec"]["selector"]["matchLabels"],
        _named("NetworkPolicy", "gateway")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels


@_needs_kubectl
def test_a_gateway_can_be_added_to_an_overlay(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes/mine"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(
        "namespace: imagefleet\nresources: [../v5e-8]\ncomponents: [../gateway, ../monitoring]\n"
        'images: [{name: imagefleet, newName: registry.example.com/imagefleet, newTag: "0.2.0"}]\n'
    )
    documents = _build_folder(folder)
    [container] = _pod(documents, "gateway")["containers"]
    assert container["image"] == "registry.example.com/imagefleet:0.2.0"
    sources = [each.get("valueFrom", {}) for each in container["env"]]
    maps = {each["configMapKeyRef"]["name"] for each in sources if "configMapKeyRef" in each}
    assert maps == {name for kind, name in documents if kind == "ConfigMap"}
    assert documents["Service", "gateway"]["metadata"]["namespace"] == "imagefleet"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_systemd_accepts_the_units(tmp_path: Path, file: Path) -> None:
    unit = tmp_path / file.name
    unit.write_text(re.sub(r"^ExecStart=.*", "ExecStart=/bin/true", file.read_text(), flags=re.M))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("tool", "file"),
    [
        ("shellcheck", "gcloud/startup.sh"),
        ("shellcheck", "gcloud/hosts.sh"),
        ("hadolint", "Dockerfile"),
    ],
)
def test_scripts_and_dockerfiles_are_clean(tool: str, file: str) -> None:
    command = Path(sys.executable).with_name(tool)
    done = subprocess.run([command, DEPLOY / file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
