"""The Helm chart, rendered and linted by Helm."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app import __version__
from app.settings import Settings, load_settings
from tests.support import helm
from tests.support.helm import HelmFailed

FOLDER = Path(__file__).parent.parent / "docker" / "helm" / "antiphon"
SCHEMA = json.loads((FOLDER / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((FOLDER / "values.yaml").read_text())

pytestmark = pytest.mark.skipif(not helm.AVAILABLE, reason="helm-python-sdk has no wheel for this machine")

OPEN: dict[str, Any] = {"settings": {"allow_open": True}, "replicas": 1}
SMALL: dict[str, Any] = {"secret": {"name": "keys"}, "store": {"secret": "keys"}}
FULL: dict[str, Any] = {
    "secret": {"name": "keys"},
    "settings": {"backend_url": "http://vllm:8000/v1", "max_body_bytes": 67_108_864, "open_after": 0.5},
    "toml": '[backends.local]\nurl = "http://vllm:8000/v1"\n',
    "redis": {"enabled": True, "storageClassName": "fast", "resources": {"limits": {"memory": "1Gi"}}},
    "env": [{"name": "OTEL_SERVICE_NAME", "value": "answers"}],
    "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/company-ca", "readOnly": True}],
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
        "hosts": ["llm.example.com"],
        "tls": [{"secretName": "llm-tls", "hosts": ["llm.example.com"]}],
    },
    "httpRoute": {
        "enabled": True,
        "parentRefs": [{"name": "gateway"}],
        "hostnames": ["llm.example.com", "llm.example"],
    },
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
    "autoscaling": {"enabled": True, "responses": 20},
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podLabels": {"team": "answers"},
    "podAnnotations": {"note": "yes"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "imagePullSecrets": [{"name": "registry"}],
}
EVERY = [OPEN, SMALL, FULL]


def documents(values: dict[str, Any]) -> list[dict[str, Any]]:
    return helm.render(FOLDER, values)


def one(kind: str, values: dict[str, Any], suffix: str = "antiphon") -> dict[str, Any]:
    (found,) = [
        document
        for document in documents(values)
        if document["kind"] == kind and document["metadata"]["name"].endswith(suffix)
    ]
    return found


def pod(values: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = one("Deployment", values)["spec"]["template"]["spec"]
    return spec


def environment(values: dict[str, Any]) -> dict[str, str]:
    """Return the variables with a value of their own; fails if a name occurs twice."""
    (container,) = pod(values)["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert len(names) == len(set(names))
    return {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}


# Values.


def test_schema_has_every_value_and_no_other() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(DEFAULTS, SCHEMA)
    assert SCHEMA["properties"].keys() - {"global"} == DEFAULTS.keys()
    for name, value in DEFAULTS.items():
        described = SCHEMA["properties"][name]
        if described.get("additionalProperties") is False:
            assert described["properties"].keys() == value.keys()


def test_schema_has_every_setting_that_is_not_the_charts_own() -> None:
    names = SCHEMA["properties"]["settings"]["propertyNames"]["enum"]
    assert len(names) == len(set(names))
    assert set(names) == Settings.model_fields.keys() - {"config", "host", "port", "workers"}


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"replicas": "2"},
        {"image": {"name": "x"}},
        {"settings": {"ANTIPHON_PORT": 1}},
        {"settings": {"backend_ulr": "http://vllm:8000/v1"}},
        {"settings": {"workers": 4}},
        {"settings": {"api_keys": "sk-1"}},
        {"settings": {"secret_key": "x"}},
        {"settings": {"backend_api_key": "sk-1"}},
        {"store": {"url": "redis://redis"}},
        {"ingress": {"host": "llm.example.com"}},
        {"extraVolumes": [{"emptyDir": {}}]},
        {"service": {"port": 0}},
        {"env": [{"value": "x"}]},
        {"serviceMonitor": {"authorization": {"name": "metrics"}}},
        {"serviceMonitor": {"authorization": {"credentials": "sk-1"}}},
    ],
)
def test_values_that_are_invalid_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HelmFailed, match="values don't meet the specifications of the schema"):
        documents({**SMALL, **values})


def test_open_server_has_to_be_allowed_explicitly() -> None:
    with pytest.raises(HelmFailed, match="ANTIPHON_API_KEYS"):
        documents({})


@pytest.mark.parametrize("values", [{"replicas": 2}, {"autoscaling": {"enabled": True}}])
@pytest.mark.parametrize("store", [{}, {"secret": {"name": "keys"}}, {"settings": {"store_url": "sqlite:///a.db"}}])
def test_several_pods_without_a_shared_store_are_refused(values: dict[str, Any], store: dict[str, Any]) -> None:
    settings = {"allow_open": True, **store.get("settings", {})}
    with pytest.raises(HelmFailed, match="Several pods require a shared Redis or PostgreSQL"):
        documents({**store, **values, "settings": settings})
    documents({**store, **values, "settings": {"allow_open": True}, "redis": {"enabled": True}})


def test_two_stores_are_refused() -> None:
    with pytest.raises(HelmFailed, match=r"Set one store, not several: redis.enabled, store\.secret"):
        documents({**SMALL, "redis": {"enabled": True}})


@pytest.mark.parametrize("name", ["ANTIPHON_HOST", "ANTIPHON_CONFIG", "ANTIPHON_STORE_URL", "ANTIPHON_LOG_FORMAT", "A"])
def test_variable_that_is_set_twice_is_refused(name: str) -> None:
    extra = [{"name": "A", "value": "1"}, {"name": name, "value": "2"}]
    with pytest.raises(HelmFailed, match=f"extraEnv: {name} is already set"):
        documents({**SMALL, "extraEnv": extra})


@pytest.mark.parametrize("values", [{"ingress": {"enabled": True}}, {"httpRoute": {"enabled": True}}])
def test_route_without_a_host_or_gateway_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HelmFailed, match=r"Set (ingress\.hosts|httpRoute\.parentRefs)"):
        documents({**SMALL, **values})


# Manifests.


def test_chart_is_of_this_version() -> None:
    about = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    assert about["appVersion"] == __version__
    assert pod(SMALL)["containers"][0]["image"] == f"antiphon:{__version__}"


def test_enabled_values_are_rendered() -> None:
    small = ["Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"]
    assert sorted(document["kind"] for document in documents(SMALL)) == small
    more = [
        "ConfigMap",
        "ConfigMap",
        "HTTPRoute",
        "HorizontalPodAutoscaler",
        "Ingress",
        "NetworkPolicy",
        "NetworkPolicy",
    ]
    more += ["PrometheusRule", "Service", "ServiceMonitor", "StatefulSet"]
    assert sorted(document["kind"] for document in documents(FULL)) == sorted([*small, *more])


@pytest.mark.parametrize("values", EVERY)
def test_documents_are_complete_and_have_names_of_their_own(values: dict[str, Any]) -> None:
    names = [(document["kind"], document["metadata"]["name"]) for document in documents(values)]
    assert len(set(names)) == len(names)
    for document in documents(values):
        assert document["apiVersion"]
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "answers"


SELECTING = ("Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet")  # pods, by their labels


@pytest.mark.parametrize(("values", "count"), [(SMALL, 3), (FULL, 7)])
def test_selectors_match_the_intended_pods(values: dict[str, Any], count: int) -> None:
    made = documents(values)
    pods = {one["metadata"]["name"]: one["spec"]["template"] for one in made if "template" in one.get("spec", {})}
    selecting = [document for document in made if document["kind"] in SELECTING]
    assert len(selecting) == count
    for document in selecting:
        selector = document["spec"]["podSelector" if document["kind"] == "NetworkPolicy" else "selector"]
        wanted = selector.get("matchLabels", selector).items()
        assert wanted, document["kind"]
        found = [name for name, template in pods.items() if wanted <= template["metadata"]["labels"].items()]
        assert found == [document["metadata"]["name"]], document["kind"]


def test_service_leads_to_the_server_and_the_monitor_to_the_service() -> None:
    service, monitor = one("Service", FULL), one("ServiceMonitor", FULL)
    ports = {port["name"] for container in pod(FULL)["containers"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_monitor_sends_the_key_of_a_secret_if_one_is_named() -> None:
    key = {"name": "metrics", "key": "token"}
    values = {**SMALL, "serviceMonitor": {"enabled": True, "authorization": key}}
    assert one("ServiceMonitor", values)["spec"]["endpoints"][0]["authorization"] == {"credentials": key}
    assert "authorization" not in one("ServiceMonitor", FULL)["spec"]["endpoints"][0]


@pytest.mark.parametrize("grace", [0, 30, 600])
def test_pod_has_the_time_that_it_needs_to_end(grace: int) -> None:
    values = {**SMALL, "settings": {"shutdown_grace": grace}, "preStopSeconds": 15}
    (container,) = pod(values)["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "15"]
    # After the grace period, runs are stopped and stored (at most 20 seconds), and telemetry is sent (5).
    assert pod(values)["terminationGracePeriodSeconds"] >= 15 + grace + 25
    assert environment(values)["ANTIPHON_SHUTDOWN_GRACE"] == str(grace)


@pytest.mark.parametrize("values", EVERY)
def test_variables_are_settings_that_the_server_accepts(values: dict[str, Any]) -> None:
    variables = {name: value for name, value in environment(values).items() if name.startswith("ANTIPHON_")}
    fields = {name.removeprefix("ANTIPHON_").lower(): value for name, value in variables.items()}
    assert fields.keys() <= Settings.model_fields.keys()
    fields.pop("config", None)
    keys = {} if values is OPEN else {"api_keys": "from the secret"}
    Settings(**fields, **keys)  # type: ignore[call-arg, arg-type]


def test_numbers_are_written_as_the_server_reads_them() -> None:
    variables = environment(FULL)
    assert (variables["ANTIPHON_MAX_BODY_BYTES"], variables["ANTIPHON_OPEN_AFTER"]) == ("67108864", "0.5")
    assert environment(OPEN)["ANTIPHON_ALLOW_OPEN"] == "true"


def test_allowed_hosts_are_the_names_of_the_service() -> None:
    service = one("Service", OPEN)["metadata"]["name"]
    names = environment(OPEN)["ANTIPHON_ALLOWED_HOSTS"].split(",")
    assert names == [f"{service}{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local")]
    chosen = {"settings": {"allow_open": True, "allowed_hosts": "*"}, "replicas": 1}
    (container,) = pod(chosen)["containers"]
    assert [v["value"] for v in container["env"] if v["name"] == "ANTIPHON_ALLOWED_HOSTS"] == ["*"]


def test_secrets_come_from_a_secret() -> None:
    (container,) = pod(FULL)["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert not any("KEY" in variable["name"] for variable in container["env"])


def test_settings_file_is_where_the_server_reads_it() -> None:
    (container,) = pod(FULL)["containers"]
    (name,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/etc/antiphon"]
    (volume,) = [volume for volume in pod(FULL)["volumes"] if volume["name"] == name]
    config = one("ConfigMap", FULL)
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert environment(FULL)["ANTIPHON_CONFIG"] == f"/etc/antiphon/{next(iter(config['data']))}"
    assert config["data"]["antiphon.toml"].strip() == FULL["toml"].strip()


def test_pods_start_anew_when_the_settings_file_changes() -> None:
    def checksum(toml: str) -> str:
        template = one("Deployment", {**SMALL, "toml": toml})["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/toml"])

    assert checksum("a = 1") != checksum("a = 2")


@pytest.mark.parametrize("values", EVERY)
def test_pods_have_no_further_privileges(values: dict[str, Any]) -> None:
    pods = [document["spec"]["template"] for document in documents(values) if "template" in document.get("spec", {})]
    assert len(pods) == 1 + ("redis" in values)
    for template in pods:
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_pods_are_scaled_by_responses_or_by_cpu() -> None:
    spec = one("HorizontalPodAutoscaler", FULL)["spec"]
    responses, cpu = spec["metrics"]
    assert responses["pods"]["metric"]["name"] == "antiphon_responses_open"
    assert responses["pods"]["target"] == {"type": "AverageValue", "averageValue": "20"}
    assert cpu["resource"]["target"]["averageUtilization"] == 70
    assert spec["scaleTargetRef"]["name"] == one("Deployment", FULL)["metadata"]["name"]
    assert "replicas" not in one("Deployment", FULL)["spec"]
    alone = one("HorizontalPodAutoscaler", {**SMALL, "autoscaling": {"enabled": True}})
    assert [metric["type"] for metric in alone["spec"]["metrics"]] == ["Resource"]


def test_redis_is_reached_by_the_server_alone() -> None:
    policy = one("NetworkPolicy", FULL, "redis")["spec"]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    labels = one("Deployment", FULL)["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["egress"] == []
    assert (
        environment(FULL)["ANTIPHON_STORE_URL"] == f"redis://{one('Service', FULL, 'redis')['metadata']['name']}:6379/0"
    )


def test_ingress_and_http_route_lead_to_the_service() -> None:
    service = one("Service", FULL)
    (rule,) = one("Ingress", FULL)["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    target = {"name": service["metadata"]["name"], "port": {"name": service["spec"]["ports"][0]["name"]}}
    assert (rule["host"], path["path"], path["backend"]["service"]) == ("llm.example.com", "/", target)
    (route,) = one("HTTPRoute", FULL)["spec"]["rules"]
    target = {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    assert route["backendRefs"] == [target]
    assert route["timeouts"] == {"request": "0s"}
    hosts = environment(FULL)["ANTIPHON_ALLOWED_HOSTS"].split(",")
    assert hosts[4:] == ["llm.example.com", "llm.example"]


def test_alerts_are_about_metrics_that_the_server_has() -> None:
    groups = one("PrometheusRule", FULL)["spec"]["groups"]
    expressions = [rule["expr"] for group in groups for rule in group["rules"]]
    assert len(expressions) == 4
    used = {name for expression in expressions for name in re.findall(r"antiphon_[a-z_]+", expression)}
    described = (FOLDER.parents[2] / "docs" / "operation.md").read_text(encoding="utf-8")
    assert {name.removesuffix("_bucket") for name in used} <= set(re.findall(r"`(antiphon_[a-z_]+)`", described))


def test_dashboard_is_found_by_the_sidecar_of_grafana() -> None:
    dashboard = one("ConfigMap", FULL, "dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["antiphon.json"])["uid"] == "antiphon"


def test_extra_volumes_are_mounted() -> None:
    (container,) = pod(FULL)["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted["ca"] == "/etc/company-ca"
    assert mounted.keys() == {volume["name"] for volume in pod(FULL)["volumes"]}


def test_store_url_comes_from_the_secret_that_store_names() -> None:
    values = {**SMALL, "store": {"secret": "database", "key": "url"}}
    (container,) = pod(values)["containers"]
    (variable,) = [variable for variable in container["env"] if variable["name"] == "ANTIPHON_STORE_URL"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "database", "key": "url"}}


def test_pods_restart_when_the_secret_changes() -> None:
    """Helm reads the Secret from the cluster; without a cluster it is empty."""
    annotations = one("Deployment", SMALL)["spec"]["template"]["metadata"]["annotations"]
    assert re.fullmatch("[0-9a-f]{64}", annotations["checksum/secret"])
    template = (FOLDER / "templates" / "deployment.yaml").read_text()
    assert '(lookup "v1" "Secret" .Release.Namespace .Values.secret.name).data' in template


def test_values_of_the_guide_for_teams_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (FOLDER.parents[2] / "docs" / "team.md").read_text(encoding="utf-8")
    (values,) = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    given = yaml.safe_load(values)
    (tmp_path / "antiphon.toml").write_text(one("ConfigMap", given)["data"]["antiphon.toml"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_CONFIG", "antiphon.toml")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-cloud")
    assert load_settings().keys["research"].budget.money_per_month == 500
