"""The Helm chart: what it renders is valid for Kubernetes and fits the image."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import StartBroker
from support.clients.bulk import BulkClient
from support.clients.http import request
from support.clients.lookup import eventually
from support.servers.processes import _Process

from broker import __version__
from broker.config.load import load

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "twinwire"
DOCKERFILE = ROOT / "Dockerfile"
VERSIONS = ("1.29.0", "1.33.0")  # of Kubernetes
ALL_ON: dict[str, Any] = {
    "ports": {"bulk": 4171, "console": 8171},
    "env": {
        "TWINWIRE_BULK_ALLOW_ANONYMOUS": True,
        "TWINWIRE_CONSOLE_ALLOW_ANONYMOUS": True,
        "TWINWIRE_NATS_MAX_PAYLOAD": "2MiB",
    },
    "envSecrets": ["logins"],
    "fileSecrets": ["certificates", "tokens"],
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccount": {"create": True, "annotations": {"a": "b"}},
    "podMonitor": {"enabled": True, "labels": {"release": "p"}, "basicAuthSecret": "logins"},
    "prometheusRule": {"enabled": True},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {}}],
        "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "persistence": {"storageClassName": "fast", "annotations": {"a": "b"}},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "service": {"annotations": {"a": "b"}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
}

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.skipif(shutil.which("helm") is None, reason="`make originals` builds helm"),
]

Rendered = dict[tuple[str, str], dict[str, Any]]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *words], capture_output=True, text=True, check=False)


def rendered(folder: Path, values: dict[str, Any], version: str = VERSIONS[-1]) -> Rendered:
    """Kind and name of each object, and the object."""
    (folder / "values.json").write_text(json.dumps(values))
    made = helm(
        "template", "mq", str(CHART), "--namespace=broker", f"--kube-version={version}",
        f"--values={folder}/values.json",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    pages = [page for page in yaml.safe_load_all(made.stdout) if page]
    found = {(page["kind"], page["metadata"]["name"]): page for page in pages}
    assert len(found) == len(pages)
    return found


def refusal(folder: Path, values: dict[str, Any]) -> str:
    (folder / "values.json").write_text(json.dumps(values))
    made = helm("template", "mq", str(CHART), "--kube-version=1.33.0", f"-f{folder}/values.json")
    assert made.returncode != 0
    return made.stderr


def pod(found: Rendered) -> dict[str, Any]:
    spec: dict[str, Any] = found["StatefulSet", "mq-twinwire"]["spec"]["template"]["spec"]
    return spec


def broker_of(found: Rendered) -> dict[str, Any]:
    container: dict[str, Any] = pod(found)["containers"][0]
    return container


def environment(found: Rendered) -> dict[str, str]:
    listed = [one for one in broker_of(found)["env"] if "value" in one]
    return {one["name"]: one["value"] for one in listed}


def test_helm_lint(tmp_path: Path) -> None:
    (tmp_path / "values.json").write_text(json.dumps(ALL_ON))
    for words in ([], [f"--values={tmp_path}/values.json"]):
        found = helm("lint", "--strict", "--kube-version=1.33.0", *words, str(CHART))
        assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{}, ALL_ON], ids=["defaults", "all"])
def test_kubernetes_accepts_each_object(
    tmp_path: Path, values: dict[str, Any], version: str
) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    found = rendered(tmp_path, values, version)
    known = [page for page in found.values() if "monitoring.coreos.com" not in page["apiVersion"]]
    for page in known:
        validate(page, version.removesuffix(".0"), strict=True)
    kinds = {page["kind"] for page in known}
    assert {"StatefulSet", "Service", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget"} <= kinds
    assert ("ServiceAccount" in kinds) == bool(values)


def test_the_broker_accepts_what_the_chart_sets(tmp_path: Path) -> None:
    for values in ({}, ALL_ON, {"ports": {"nsq": 0}}):
        found = rendered(tmp_path, values)
        file = tmp_path / "twinwire.toml"
        file.write_text(found["ConfigMap", "mq-twinwire"]["data"]["twinwire.toml"])
        settings = {k: v for k, v in environment(found).items() if k.startswith("TWINWIRE_")}
        config = load(file, settings, {})
        assert str(config.server.data) == "/data"
        ports = {one["name"]: one["containerPort"] for one in broker_of(found)["ports"]}
        addresses = {"nats": config.nats.listen, "nsq": config.nsq.listen}
        addresses |= {"nsq-http": config.nsq.http, "monitor": config.monitor.listen}
        addresses |= {"bulk": config.bulk.listen}
        if values is ALL_ON:
            addresses |= {"console": config.console.listen}
        else:  # inside the pod
            assert config.console.listen == ("127.0.0.1", 8171)
        assert {name: a.port for name, a in addresses.items() if a is not None} == ports


def test_the_pod_has_the_user_of_the_image_and_no_right(tmp_path: Path) -> None:
    """The profile `restricted` of Kubernetes, and a root that cannot be written."""
    found = rendered(tmp_path, ALL_ON)
    (user, group) = re.findall(r"(?m)^USER (\d+):(\d+)$", DOCKERFILE.read_text())[0]
    security = pod(found)["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))
    assert security["fsGroup"] == int(group)
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(found)["automountServiceAccountToken"] is False
    assert pod(found)["enableServiceLinks"] is False
    for container in pod(found)["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["image"] == f"twinwire:{__version__}"


def test_probes(tmp_path: Path) -> None:
    """A broker with a quarantined log is neither restarted nor taken out of the Service."""
    broker = broker_of(rendered(tmp_path, {}))
    assert broker["startupProbe"]["tcpSocket"] == {"port": "nats"}
    assert broker["readinessProbe"]["tcpSocket"] == {"port": "nats"}
    assert broker["livenessProbe"]["httpGet"]["path"] == "/healthz?alive=1"
    broker = broker_of(rendered(tmp_path, {"ports": {"nats": 0}}))
    assert broker["startupProbe"]["tcpSocket"] == {"port": "nsq"}
    strict = {"probes": {"readiness": {"strict": True}}}
    ready = broker_of(rendered(tmp_path, strict))["readinessProbe"]
    assert ready["httpGet"] == {"path": "/healthz", "port": "monitor"}
    assert "strict" not in ready


def test_the_liveness_probe_of_a_broker_with_a_problem(start_broker: StartBroker) -> None:
    server = start_broker({})
    assert request(server.nsq_http, "POST", "/pub", b"x", topic="bad").status == 200
    server.stop()
    (server.data / "logs" / "bad" / "meta.json").unlink()
    (server.data / "logs" / "bad" / "meta.json").mkdir()
    server.start()
    assert request(server.monitor, "GET", "/healthz").status == 503
    assert request(server.monitor, "GET", "/healthz?alive=1").status == 200


def test_who_may_connect(tmp_path: Path) -> None:
    policy = rendered(tmp_path, {})["NetworkPolicy", "mq-twinwire"]["spec"]
    assert [rule["from"] for rule in policy["ingress"]] == [[{"podSelector": {}}]] * 2
    policy = rendered(tmp_path, ALL_ON)["NetworkPolicy", "mq-twinwire"]["spec"]
    clients, monitoring = policy["ingress"]
    assert clients["from"] == ALL_ON["networkPolicy"]["clients"]
    assert {port["port"] for port in clients["ports"]} == {
        "nats", "nsq", "nsq-http", "bulk", "console"
    }  # fmt: skip
    assert monitoring["from"] == ALL_ON["networkPolicy"]["monitoring"]
    assert [port["port"] for port in monitoring["ports"]] == ["monitor"]
    off = {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}}
    kinds = {kind for kind, _ in rendered(tmp_path, off)}
    assert kinds == {"StatefulSet", "Service", "ConfigMap"}


def test_data(tmp_path: Path) -> None:
    (claim,) = rendered(tmp_path, ALL_ON)["StatefulSet", "mq-twinwire"]["spec"][
        "volumeClaimTemplates"
    ]
    assert claim["spec"]["storageClassName"] == "fast"
    for persistence, wanted in (
        ({"enabled": False}, {"emptyDir": {}}),
        ({"existingClaim": "old"}, {"persistentVolumeClaim": {"claimName": "old"}}),
    ):
        found = rendered(tmp_path, {"persistence": persistence})
        assert "volumeClaimTemplates" not in found["StatefulSet", "mq-twinwire"]["spec"]
        assert {"name": "data", **wanted} in pod(found)["volumes"]
    for values in ({}, ALL_ON, {"persistence": {"enabled": False}}):
        found = rendered(tmp_path, values)
        spec = found["StatefulSet", "mq-twinwire"]["spec"]
        claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
        volumes = {*claims, *(volume["name"] for volume in pod(found)["volumes"])}
        for container in pod(found)["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_secrets_are_files_or_variables(tmp_path: Path) -> None:
    found = rendered(tmp_path, ALL_ON)
    assert broker_of(found)["envFrom"] == [{"secretRef": {"name": "logins"}}]
    mounts = {mount["mountPath"] for mount in broker_of(found)["volumeMounts"]}
    assert {f"/etc/twinwire/secrets/{name}" for name in ("certificates", "tokens")} <= mounts
    assert pod(found)["shareProcessNamespace"] is True
    assert [one["name"] for one in pod(found)["containers"]] == ["broker", "reload"]
    assert [one["name"] for one in pod(rendered(tmp_path, {}))["containers"]] == ["broker"]


def test_a_changed_configuration_starts_a_new_pod(tmp_path: Path) -> None:
    def checksum(values: dict[str, Any]) -> str:
        template = rendered(tmp_path, values)["StatefulSet", "mq-twinwire"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) == checksum({})
    assert checksum({}) != checksum({"config": "[log]\nlevel = 'debug'\n"})


def test_monitoring(tmp_path: Path) -> None:
    found = rendered(tmp_path, ALL_ON)
    monitor = found["PodMonitor", "mq-twinwire"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("monitor", "/metrics")
    assert endpoint["basicAuth"]["password"] == {"name": "logins", "key": "password"}
    template = found["StatefulSet", "mq-twinwire"]["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template.items()
    assert template[monitor["spec"]["jobLabel"]] == "twinwire"  # of the alert TwinwireDown
    alerts = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yaml").read_text())
    assert found["PrometheusRule", "mq-twinwire"]["spec"] == alerts


def test_the_chart_has_the_alerts_and_the_version_of_the_tree() -> None:
    inside = CHART / "files" / "alerts.yaml"
    assert inside.read_text() == (ROOT / "deploy/monitoring/alerts.yaml").read_text()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replicas": 2}, "replicas"),
        ({"ports": {"nats": 80}}, "nats"),
        ({"ports": {"monitor": 0}}, "monitor"),
        ({"ports": {"nats": 0, "nsq": 0}}, "ports.nats or ports.nsq must be on"),
        ({"env": {"LOG_LEVEL": "debug"}}, "LOG_LEVEL"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"persistence": {"whenDeleted": "Keep"}}, "whenDeleted"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, values: dict[str, Any], reason: str) -> None:
    assert reason in refusal(tmp_path, values)


def test_a_changed_secret_reloads_the_broker(tmp_path: Path, start_broker: StartBroker) -> None:
    """The script of the chart, on files that change as Kubernetes changes them."""
    watched = tmp_path / "secrets"
    volume = watched / "logins"
    for name in ("old", "new"):
        (volume / f"..{name}").mkdir(parents=True)
        tokens = volume / f"..{name}" / "tokens"
        tokens.write_text(f"{name} {name * 16} read >\n")
        tokens.chmod(0o600)
    (volume / "..data").symlink_to("..old")
    (volume / "tokens").symlink_to("..data/tokens")
    server = start_broker({"bulk": {"token_file": str(volume / "tokens")}})

    def status(name: str) -> int:
        with BulkClient(server.bulk, name * 16) as client:
            return client.ask("GET", "topics").status

    assert (status("old"), status("new")) == (200, 401)
    reload = _Process(tmp_path / "reload.log")
    lock = server.data / "twinwire.lock"
    script = str(CHART / "files" / "reload.sh")
    try:
        reload.spawn(["env", f"WATCHED={watched}", f"LOCK={lock}", "INTERVAL=0.1", "sh", script])
        eventually(lambda: "watching" in reload.output())
        (volume / "..next").symlink_to("..new")
        (volume / "..next").replace(volume / "..data")
        eventually(lambda: (status("old"), status("new")), (401, 200))
        assert reload.end(signal.SIGTERM) == 0
        assert reload.output().count("SIGHUP sent") == 1
    finally:
        if reload.child is not None and reload.child.poll() is None:
            reload.child.kill()
            reload.child.wait()
