"""The Helm chart: what it makes of its values, and which values it takes. With a `helm` at hand, that has to agree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app import __version__
from app.settings import Settings, load_settings
from tests.support.gotemplate import Chart, Failed, merged

FOLDER = Path(__file__).parent.parent / "docker" / "helm" / "antiphon"
CHART = Chart(FOLDER)
SCHEMA = json.loads((FOLDER / "values.schema.json").read_text())

OPEN: dict[str, Any] = {"settings": {"allow_open": True}, "replicas": 1}
SMALL: dict[str, Any] = {"secret": {"name": "keys"}}
FULL: dict[str, Any] = {
    "secret": {"name": "keys"},
    "settings": {"backend_url": "http://vllm:8000/v1", "max_body_bytes": 67_108_864, "open_after": 0.5},
    "toml": '[backends.local]\nurl = "http://vllm:8000/v1"\n',
    "redis": {"enabled": True, "storageClassName": "fast", "resources": {"limits": {"memory": "1Gi"}}},
    "env": [{"name": "OTEL_SERVICE_NAME", "value": "answers"}],
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
    rendered = CHART.render(values)
    texts = (text for name, text in rendered.items() if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


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
    (container,) = pod(values)["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}


# What it takes.


@pytest.mark.parametrize("values", [{}, *EVERY])
def test_values_fit_the_schema(values: dict[str, Any]) -> None:
    jsonschema.validate(merged(CHART.defaults, values), SCHEMA)


def test_schema_has_every_value_and_no_other() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(CHART.defaults, SCHEMA)
    assert SCHEMA["properties"].keys() - {"global"} == CHART.defaults.keys()
    for name, value in CHART.defaults.items():
        described = SCHEMA["properties"][name]
        if described.get("additionalProperties") is False:
            assert described["properties"].keys() == value.keys()


def test_schema_has_every_setting_that_is_not_the_charts_own() -> None:
    names = SCHEMA["properties"]["settings"]["propertyNames"]["enum"]
    assert names == [name for name in Settings.model_fields if name not in {"config", "host", "port", "workers"}]


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
        {"service": {"port": 0}},
        {"env": [{"value": "x"}]},
        {"serviceMonitor": {"authorization": {"name": "metrics"}}},
        {"serviceMonitor": {"authorization": {"credentials": "sk-1"}}},
    ],
)
def test_values_that_are_invalid_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(CHART.defaults, values), SCHEMA)


def test_open_server_has_to_be_allowed_explicitly() -> None:
    with pytest.raises(Failed, match="ANTIPHON_API_KEYS"):
        CHART.render({})


@pytest.mark.parametrize("values", [{"replicas": 2}, {"autoscaling": {"enabled": True}}])
def test_several_pods_need_a_shared_store(values: dict[str, Any]) -> None:
    with pytest.raises(Failed, match="one Redis"):
        CHART.render({**OPEN, **values})
    documents({**OPEN, **values, "redis": {"enabled": True}})


# What it makes.


def test_chart_is_of_this_version() -> None:
    about = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    assert about["appVersion"] == __version__
    assert pod(SMALL)["containers"][0]["image"] == f"antiphon:{__version__}"


def test_enabled_values_are_rendered() -> None:
    small = ["Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"]
    assert sorted(document["kind"] for document in documents(SMALL)) == small
    more = ["ConfigMap", "HorizontalPodAutoscaler", "NetworkPolicy", "NetworkPolicy", "Service", "ServiceMonitor"]
    assert sorted(document["kind"] for document in documents(FULL)) == sorted([*small, *more, "StatefulSet"])


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
    # Behind the grace, runs are stopped and put away (at most 20 seconds), and telemetry is sent (5).
    assert pod(values)["terminationGracePeriodSeconds"] >= 15 + grace + 25
    assert environment(values)["ANTIPHON_SHUTDOWN_GRACE"] == str(grace)


@pytest.mark.parametrize("values", EVERY)
def test_variables_are_settings_that_the_server_accepts(values: dict[str, Any]) -> None:
    variables = {name: value for name, value in environment(values).items() if name.startswith("ANTIPHON_")}
    fields = {name.removeprefix("ANTIPHON_").lower(): value for name, value in variables.items()}
    assert fields.keys() <= Settings.model_fields.keys()
    fields.pop("config", None)
    keys = {} if values is OPEN else {"api_keys": "from the secret"}
    Settings(_env_file=None, **fields, **keys)  # type: ignore[call-arg, arg-type]


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
    for document in documents(values):
        if "template" not in document.get("spec", {}):
            continue
        spec = document["spec"]["template"]["spec"]
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


# With Helm itself.


@pytest.mark.skipif(not shutil.which("helm"), reason="there is no helm here")
@pytest.mark.parametrize("values", EVERY)
def test_helm_renders_the_same(values: dict[str, Any], tmp_path: Path) -> None:
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(values))
    subprocess.run(["helm", "lint", "--strict", FOLDER, "--values", given], check=True, capture_output=True)
    command = ["helm", "template", "answers", FOLDER, "--namespace", "default", "--values", given]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def by_name(made: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        return {(document["kind"], document["metadata"]["name"]): document for document in made}

    assert by_name([document for document in yaml.safe_load_all(said) if document]) == by_name(documents(values))


def test_values_of_the_guide_for_teams_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (FOLDER.parents[2] / "docs" / "team.md").read_text(encoding="utf-8")
    (values,) = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    given = yaml.safe_load(values)
    jsonschema.validate(merged(CHART.defaults, given), SCHEMA)
    (tmp_path / "antiphon.toml").write_text(one("ConfigMap", given)["data"]["antiphon.toml"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_CONFIG", "antiphon.toml")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-cloud")
    assert load_settings().keys["research"].budget.money_per_month == 500
