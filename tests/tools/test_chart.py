"""Tests of the Helm chart: its manifests are valid for Kubernetes, and contain only settings and commands of the
relay."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml

from relay.api.origin_check import WebRules
from relay.api.routes import ROUTES as ACCESS
from relay.cli.group import relay
from relay.config.own_address import is_loopback, own_names
from relay.config.plan import ROLES
from relay.config.receivers_file import load_receivers_file
from relay.config.setting_layers import ALSO_FROM, SECRET_SETTINGS, env_name, load_settings
from relay.config.settings import Settings
from relay.domain.errors import UserError
from relay.domain.identity import is_receiver_name
from relay.domain.topics import SHARED, Topics
from tests.prometheus.files import DASHBOARD, RULES
from tests.tools.test_docker import parse

CHART = Path(__file__).parents[2] / "charts" / "webhook-relay"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
RENDERED: Final = {
    name for file in (CHART / "templates").iterdir() for name in re.findall(r"name: (RELAY_\w+),", file.read_text())
}
"""The variables that the templates set."""
OLDEST, NEWEST = "1.27", "1.33"
LONGEST: Final = 63
"""Characters that the value of a label may have; KEDA makes one of a ScaledObject's name."""
Values = Mapping[str, Any]
LEAST: Final[dict[str, Any]] = {"kafka": {"bootstrapServers": "kafka-0:9092,kafka-1:9092"}}
POOLED = LEAST | {
    "receivers": {"receivers": {"ci": {"post_endpoint": "https://ci.example/hooks", "secret": "${CI_SECRET}"}}},
}
PER_RECEIVER = POOLED | {
    "autoscaling": {"enabled": True, "authenticationRef": "kafka"},
    "perReceiver": {"ci": {"maxReplicas": 5}, "build-farm": {"replicas": 3}},
}
EVERYTHING = PER_RECEIVER | {
    "kafka": LEAST["kafka"] | {"topicPrefix": "stage."},
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"]},
    "settings": {"RELAY_PUBLIC_URL": "https://relay.example", "RELAY_MAX_REQUESTS": 5000, "RELAY_PAGES": False},
    "roles": {"history": {"enabled": True}},
    "service": {"annotations": {"example.com/zone": "a"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "relay.example",
        "tlsSecretName": "tls",
        "annotations": {"cert-manager.io/cluster-issuer": "letsencrypt"},
    },
    "networkPolicy": {"enabled": True},
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "authorization": {"secretName": "relay-metrics", "key": "key"},
    },
    "filesSecretName": "relay-files",
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "hooks"},
    "nodeSelector": {"pool": "relay"},
    "tolerations": [{"key": "relay", "operator": "Exists"}],
}
WITH_POSTGRESQL = POOLED | {
    "postgresql": {"enabled": True, "storageClassName": "fast"},
    "networkPolicy": {"enabled": True},
}
CASES: Final[Mapping[str, Values]] = {
    "least": LEAST,
    "pooled": POOLED,
    "per receiver": PER_RECEIVER,
    "everything": EVERYTHING,
    "with PostgreSQL": WITH_POSTGRESQL,
}
SCALED_OBJECT = {
    "type": "object",
    "required": ["scaleTargetRef", "triggers"],
    "additionalProperties": False,
    "properties": {
        "scaleTargetRef": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        **{
            name: {"type": "integer"}
            for name in ("minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod")
        },
        "triggers": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["type", "metadata"],
                "additionalProperties": False,
                "properties": {
                    "type": {"const": "kafka"},
                    "metadata": {
                        "type": "object",
                        "required": ["bootstrapServers", "consumerGroup", "lagThreshold"],
                        "additionalProperties": False,
                        "properties": {  # KEDA takes nothing but texts here; without a topic it adds up the group's
                            name: {"type": "string", "minLength": 1}
                            for name in (
                                *("bootstrapServers", "consumerGroup", "topic", "lagThreshold"),
                                *("activationLagThreshold", "offsetResetPolicy"),
                            )
                        },
                    },
                    "authenticationRef": {"type": "object", "required": ["name"]},
                },
            },
        },
    },
}
SERVICE_MONITOR = {
    "type": "object",
    "required": ["selector", "endpoints"],
    "additionalProperties": False,
    "properties": {
        "selector": {"type": "object", "required": ["matchLabels"]},
        "podTargetLabels": {"type": "array", "items": {"type": "string"}},
        "endpoints": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["port"],
                "additionalProperties": False,
                "properties": {
                    **{name: {"type": "string"} for name in ("port", "path", "interval")},
                    "relabelings": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {name: {"type": "string"} for name in ("targetLabel", "replacement")},
                        },
                    },
                    "authorization": {
                        "type": "object",
                        "required": ["credentials"],
                        "additionalProperties": False,
                        "properties": {
                            "credentials": {
                                "type": "object",
                                "required": ["name", "key"],
                                "additionalProperties": {"type": "string"},
                            }
                        },
                    },
                },
            },
        },
    },
}
OTHERS = {
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): SERVICE_MONITOR,
}
Manifest = dict[str, Any]


def find_helm() -> str | None:
    """On the path, or where `go install` puts it."""
    return shutil.which("helm") or shutil.which("helm", path=os.environ.get("GOBIN", str(Path.home() / "go" / "bin")))


HELM = find_helm()
needs_helm = pytest.mark.skipif(
    HELM is None, reason="no helm: go install helm.sh/helm/v3/cmd/helm@latest, or from your packages"
)


def helm(*arguments: str, values: Mapping[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    assert HELM is not None
    return subprocess.run(
        # a Helm that `go install` has built assumes a very old version of Kubernetes
        [HELM, *arguments, str(CHART), "--values", str(file), "--kube-version", NEWEST],
        capture_output=True,
        text=True,
        check=False,
    )


def rendered(values: Mapping[str, Any], tmp_path: Path, release: str = "prod") -> list[Manifest]:
    done = helm("template", release, values=values, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]


def of_kind(kind: str, manifests: list[Manifest]) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def containers(manifests: list[Manifest]) -> dict[str, Manifest]:
    kinds = {**of_kind("Deployment", manifests), **of_kind("Job", manifests)}
    return {name: each["spec"]["template"]["spec"]["containers"][0] for name, each in kinds.items()}


def variables(container: Manifest) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def secrets_of(container: Manifest) -> set[str]:
    """The variables that it has of the Secret, if they are there."""
    found = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"] if "value" not in each}
    assert all(each == {"name": "webhook-relay", "key": name, "optional": True} for name, each in found.items())
    return set(found)


# --- without helm


def test_the_values_are_as_their_schema_says_and_mistakes_are_not() -> None:
    check = jsonschema.Draft7Validator(SCHEMA)
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    check.validate(VALUES)
    mistakes: list[Values] = [
        {"image": {"digest": "latest"}},
        {"kafka": {"bootstrapServers": "kafka"}},
        {"roles": {"to_receiver": {"enabled": True}}},
        {"settings": {"LOG_LEVEL": "debug"}},
        {"perReceiver": {"Two Words": {}}},
        {"autoscaling": {"minReplicas": 0}},  # parked messages become due without a record, so their topic has no lag
        {"autoscale": {}},
    ]
    for wrong in mistakes:
        assert not check.is_valid(wrong), wrong


def test_what_belongs_into_the_secret_or_is_said_elsewhere_is_no_setting_of_the_values() -> None:
    check = jsonschema.Draft7Validator(SCHEMA)
    secret = {env_name(field) for field in SECRET_SETTINGS} | {
        also for also, field in ALSO_FROM.items() if field in SECRET_SETTINGS
    }
    own = {name for name in RENDERED if name != "RELAY_ALLOWED_HOSTS"}
    refused = set(SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"])
    assert refused == secret | own
    for name in refused:
        assert not check.is_valid({"settings": {name: "x"}})
    assert check.is_valid({"settings": {"RELAY_LOG_LEVEL": "debug", "RELAY_ALLOWED_HOSTS": "relay.example"}})


@pytest.mark.parametrize("name", ["ci", "a-", "0", "c" * 63, "c" * 64, "two_words", "-a", "", "CI", "shared"])
def test_names_of_receivers_are_those_of_the_relay(name: str) -> None:
    check = jsonschema.Draft7Validator(SCHEMA)
    assert check.is_valid({"perReceiver": {name: {}}}) is (is_receiver_name(name) and name != SHARED)


def test_each_role_has_its_deployment() -> None:
    assert list(VALUES["roles"]) == list(ROLES)


# --- with helm


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_helm_has_nothing_to_say(case: str, tmp_path: Path) -> None:
    done = helm("lint", "--strict", "--quiet", values=CASES[case], tmp_path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_what_is_made_is_valid(case: str, tmp_path: Path) -> None:
    for manifest in rendered(CASES[case], tmp_path):
        other = OTHERS.get((manifest["apiVersion"], manifest["kind"]))
        if other is not None:
            jsonschema.Draft7Validator(other).validate(manifest["spec"])
            continue
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(manifest, version, strict=True)


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_each_variable_is_a_setting_and_each_command_one_of_the_relay(case: str, tmp_path: Path) -> None:
    known = {env_name(field) for field in Settings.model_fields}
    found = containers(rendered(CASES[case], tmp_path))
    for container in found.values():
        parse(relay, container["args"])
        names = [each["name"] for each in container["env"]]
        assert variables(container).keys() <= known
        assert len(names) == len(set(names))
        assert all(isinstance(each, str) for each in variables(container).values())
        load_settings({}, variables(container))
        assert "envFrom" not in container
        ports = {each["value"] for each in container["env"] if each["name"] in ("RELAY_API_PORT", "RELAY_METRICS_PORT")}
        assert ports <= {"8080"}
        host = variables(container).get("RELAY_API_HOST", "127.0.0.1")
        assert is_loopback(host) is (container["args"][0] == "topics")  # the others are asked how they are


@needs_helm
def test_nothing_secret_is_written_out_and_nobody_may_do_more_than_needed(tmp_path: Path) -> None:
    manifests = rendered(EVERYTHING, tmp_path)
    assert not of_kind("Secret", manifests)
    for container in containers(manifests).values():
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["image"] == "webhook-relay@sha256:" + "0" * 64
        assert container["resources"]["limits"]["memory"]


@needs_helm
@pytest.mark.parametrize("prefix", ["", "stage."])
def test_a_receiver_gets_a_deployment_that_grows_with_what_waits_for_it(prefix: str, tmp_path: Path) -> None:
    values = PER_RECEIVER | {"kafka": LEAST["kafka"] | {"topicPrefix": prefix}}
    manifests, topics = rendered(values, tmp_path), Topics(prefix)
    deployment = of_kind("Deployment", manifests)["prod-receiver-ci"]
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--receivers-only") + 1] == "ci"
    assert "replicas" not in deployment["spec"]  # they are KEDA's to say
    scaled = of_kind("ScaledObject", manifests)
    assert scaled["prod-receiver-ci"]["spec"]["scaleTargetRef"] == {"name": "prod-receiver-ci"}
    assert scaled["prod-receiver-ci"]["spec"]["maxReplicaCount"] == 5
    asked = {
        name: {(each["metadata"].get("topic"), each["metadata"]["consumerGroup"]) for each in one["spec"]["triggers"]}
        for name, one in scaled.items()
    }
    assert asked["prod-receiver-ci"] == set(topics.lane_groups("ci").items())
    assert asked["prod-receiver-build-farm"] == set(topics.lane_groups("build-farm").items())
    pool = set().union(*(asked[f"prod-{role}"] for role in ROLES if f"prod-{role}" in asked))
    of_lanes = topics.lane_groups(SHARED)
    # The pool reads the lanes of all receivers, also of those that are registered later: KEDA adds up all topics of a
    # group where none is named.
    assert pool == {(None if topic in of_lanes else topic, group) for topic, group in topics.fixed_groups().items()}
    assert asked["prod-to-receiver"] == {(None, topics.group("to-receiver"))}
    references = {one["metadata"]["name"] for one in of_kind("Deployment", manifests).values()}
    assert {one["spec"]["scaleTargetRef"]["name"] for one in scaled.values()} <= references
    for one in scaled.values():
        assert all(each["authenticationRef"] == {"name": "kafka"} for each in one["spec"]["triggers"])


@needs_helm
def test_who_follows_the_documentation_gets_a_receiver_with_pods_of_its_own_that_grow(tmp_path: Path) -> None:
    text = (CHART.parents[1] / "docs" / "kubernetes.md").read_text()
    values: dict[str, Any] = {}
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        for name, value in yaml.safe_load(block).items():
            values[name] = values.get(name, {}) | value if isinstance(value, dict) else value
    manifests = rendered(values, tmp_path)
    for container in containers(manifests).values():
        load_settings({}, variables(container))
    [config] = [each for name, each in of_kind("ConfigMap", manifests).items() if name == "prod-receivers"]
    file = tmp_path / "receivers.yaml"
    file.write_text(config["data"]["receivers.yaml"])
    [name] = values["perReceiver"]
    assert name in load_receivers_file(file).receivers
    assert f"prod-receiver-{name}" in of_kind("Deployment", manifests)
    asked = of_kind("ScaledObject", manifests)[f"prod-receiver-{name}"]["spec"]["triggers"]
    topics = {each["metadata"]["topic"] for each in asked}
    assert topics == Topics().lane_groups(name).keys()
    assert all(f"`{topic}`" in text for topic in topics)


@needs_helm
@pytest.mark.parametrize("release", ["prod", "r" * 53])
def test_names_of_any_length_are_short_enough_and_different(release: str, tmp_path: Path) -> None:
    names = ["c" * 63, "c" * 62 + "d", "ends-", "ends", "to-receiver", "a-" * 31]
    values = PER_RECEIVER | {"perReceiver": {name: {} for name in names}}
    manifests = rendered(values, tmp_path, release)
    deployments = of_kind("Deployment", manifests)
    assert len(deployments) == sum(role["enabled"] for role in VALUES["roles"].values()) + len(names)
    labels = [one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for one in deployments.values()]
    assert len(set(labels)) == len(labels)
    scaled = of_kind("ScaledObject", manifests)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in [*labels, *deployments, *scaled])
    asked = {each["metadata"].get("topic") for one in scaled.values() for each in one["spec"]["triggers"]}
    assert {Topics().to_receiver(name) for name in names} <= asked
    served = [one["args"][one["args"].index("--receivers-only") + 1] for one in containers(manifests).values()
              if "--receivers-only" in one["args"]]  # fmt: skip
    assert sorted(served) == sorted(names)


@needs_helm
def test_what_kubernetes_says_of_services_is_not_taken_for_settings(tmp_path: Path) -> None:
    """Of a Service `relay` it would put RELAY_PORT and others into each container, and the relay refuses to start with
    a variable of its own that it does not know."""
    with pytest.raises(UserError, match="RELAY_PORT"):
        load_settings({}, {"RELAY_PORT": "tcp://10.0.0.1:80"})
    manifests = rendered(EVERYTHING, tmp_path, "relay")
    pods = [*of_kind("Deployment", manifests).values(), *of_kind("Job", manifests).values()]
    assert len(pods) > len(ROLES)
    assert all(one["spec"]["template"]["spec"]["enableServiceLinks"] is False for one in pods)


@needs_helm
@pytest.mark.parametrize(("kind", "key"), [("Service", "service"), ("Ingress", "ingress")])
def test_what_leads_to_the_api_may_be_annotated(kind: str, key: str, tmp_path: Path) -> None:
    metadata = of_kind(kind, rendered(EVERYTHING, tmp_path))["prod"]["metadata"]
    assert metadata["annotations"] == EVERYTHING[key]["annotations"]


@needs_helm
def test_large_numbers_are_written_in_digits(tmp_path: Path) -> None:
    """Helm reads numbers as floats, of which it writes a million as 1e+06."""
    settings = {"RELAY_PARKED_TOTAL": 2000000, "RELAY_MAX_PAYLOAD_BYTES": 1048576, "RELAY_ATTEMPT_LOG": 0.5}
    values = PER_RECEIVER | {"settings": settings, "autoscaling": {"enabled": True, "lagThreshold": 1000000}}
    manifests = rendered(values, tmp_path)
    for container in containers(manifests).values():
        assert {name: variables(container)[name] for name in settings} == {n: str(v) for n, v in settings.items()}
    triggers = of_kind("ScaledObject", manifests)["prod-from-sender"]["spec"]["triggers"]
    assert [each["metadata"]["lagThreshold"] for each in triggers] == ["1000000"]


@needs_helm
def test_a_role_may_have_no_replicas(tmp_path: Path) -> None:
    values = POOLED | {"roles": {"to-receiver": {"replicas": 0}}, "perReceiver": {"ci": {"replicas": 0}, "cd": {}}}
    deployments = of_kind("Deployment", rendered(values, tmp_path))
    names = ("prod-to-receiver", "prod-receiver-ci", "prod-receiver-cd")
    assert [deployments[name]["spec"]["replicas"] for name in names] == [0, 0, 1]


@needs_helm
def test_a_pod_of_the_api_that_is_deleted_answers_until_nobody_sends_to_it_any_more(tmp_path: Path) -> None:
    for name, container in containers(rendered(POOLED, tmp_path)).items():
        assert container.get("lifecycle") == (
            {"preStop": {"exec": {"command": ["sleep", "5"]}}} if name == "prod-api" else None
        )


@needs_helm
def test_pods_listen_on_the_addresses_of_the_cluster(tmp_path: Path) -> None:
    for container in containers(rendered(POOLED | {"listenAddress": "::"}, tmp_path)).values():
        assert variables(container).get("RELAY_API_HOST") == (None if container["args"][0] == "topics" else "::")


@needs_helm
def test_all_pods_run_on_the_nodes_that_the_values_choose(tmp_path: Path) -> None:
    manifests = rendered(EVERYTHING | WITH_POSTGRESQL, tmp_path)
    for kind in ("Deployment", "Job", "StatefulSet"):
        for each in of_kind(kind, manifests).values():
            pod = each["spec"]["template"]["spec"]
            assert (pod["nodeSelector"], pod["tolerations"]) == (EVERYTHING["nodeSelector"], EVERYTHING["tolerations"])


@needs_helm
def test_the_api_may_be_called_as_its_service_is_called(tmp_path: Path) -> None:
    api = containers(rendered(EVERYTHING, tmp_path))["prod-api"]
    settings = load_settings({}, variables(api))
    rules = WebRules(own_names(settings), settings.public_url)
    for host in (
        "prod",
        "prod:80",
        "prod.default",
        "prod.default.svc",
        "prod.default.svc.cluster.local",
        "relay.example",
    ):
        assert rules.is_ours(host), host
    assert not rules.is_ours("prod.other")
    own = EVERYTHING | {"settings": {"RELAY_ALLOWED_HOSTS": "hooks.example"}}
    settings = load_settings({}, variables(containers(rendered(own, tmp_path))["prod-api"]))
    assert own_names(settings) == ("hooks.example",)


OF_ALL: Final = frozenset({"RELAY_REDIS_URL", "RELAY_KAFKA_SASL_PASSWORD", "RELAY_SENTRY_DSN", "SENTRY_DSN"})
OF_RUNNING: Final = frozenset({
    *("RELAY_METRICS_KEY", "RELAY_NOTICE_SLACK_URL", "RELAY_NOTICE_SMTP_URL", "RELAY_NOTICE_PAGERDUTY_KEY"),
    *("RELAY_NOTICE_OWNERS", "RELAY_EGRESS_PROXY"),
})  # fmt: skip
OF_SENDERS: Final = frozenset({"RELAY_SECRETS_KEY", "CI_SECRET", "CD_TOKEN", "OF_THE_API"})


@needs_helm
def test_each_role_has_the_secrets_that_it_needs_and_no_others(tmp_path: Path) -> None:
    named = {"receivers": {"cd": {"post_endpoint": "https://cd.example/", "bearer_token": "${CD_TOKEN}"}}}
    receivers = {"receivers": POOLED["receivers"]["receivers"] | named["receivers"]}
    values = EVERYTHING | {"receivers": receivers, "receiverSecrets": ["OF_THE_API"]}
    found = {name: secrets_of(one) - OF_ALL for name, one in containers(rendered(values, tmp_path)).items()}
    own = {name: found[f"prod-{name}"] - {"OTEL_EXPORTER_OTLP_HEADERS"} for name in (*ROLES, "topics", "receiver-ci")}
    answers = {"RELAY_ANSWER_SECRET", "RELAY_ANSWER_JWK"}
    api = {"RELAY_API_KEY", "RELAY_SESSION_SECRET", "RELAY_HISTORY_URL", *answers, *OF_SENDERS}
    assert {name: some - OF_RUNNING for name, some in own.items()} == {
        "api": api,
        "from-sender": set(),
        "to-receiver": {*answers, *OF_SENDERS},
        "from-receiver-async": {"RELAY_ANSWER_JWK", *OF_SENDERS},
        "to-sender": OF_SENDERS,
        "failed-messages": set(),
        "history": {"RELAY_HISTORY_URL"},
        "topics": set(),
        "receiver-ci": {*answers, *OF_SENDERS},
    }
    assert {name: some & OF_RUNNING for name, some in own.items()} == dict.fromkeys(own, OF_RUNNING) | {"topics": set()}
    secret = {env_name(field) for field in SECRET_SETTINGS}
    assert secret <= OF_ALL | own["api"], "each secret setting belongs to some role"


@needs_helm
@pytest.mark.parametrize(
    "rule", [".roles", 'has "api" .roles', "$reads", 'or (has "api" .roles) (has "to-receiver" .roles)', "$sends"]
)
def test_secrets_that_are_for_all_roles_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rule: str) -> None:
    planted = tmp_path / "chart"
    shutil.copytree(CHART, planted)
    helpers = planted / "templates" / "_helpers.tpl"
    before, opening, secrets = helpers.read_text().partition('{{- define "relay.secrets"')
    assert f"if {rule} " in secrets
    helpers.write_text(before + opening + secrets.replace(f"if {rule} ", "if true ", 1))
    monkeypatch.setattr(f"{__name__}.CHART", planted)
    with pytest.raises(AssertionError):
        test_each_role_has_the_secrets_that_it_needs_and_no_others(tmp_path)


@needs_helm
def test_the_chart_brings_a_postgresql_with_the_history_that_it_is_for(tmp_path: Path) -> None:
    manifests = rendered(WITH_POSTGRESQL, tmp_path)
    [database] = of_kind("StatefulSet", manifests).values()
    [container] = database["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    service = of_kind("Service", manifests)["prod-postgresql"]
    assert service["spec"]["selector"].items() <= database["spec"]["template"]["metadata"]["labels"].items()
    roles = containers(manifests)
    url = "postgresql://relay:$(POSTGRES_PASSWORD)@prod-postgresql:5432/relay"
    named = {name: variables(each).get("RELAY_HISTORY_URL") for name, each in roles.items()}
    assert {name for name, each in named.items() if each is not None} == {"prod-api", "prod-history"}
    assert {each for each in named.values() if each is not None} == {url}
    for name in ("prod-api", "prod-history"):  # a variable is put into those that come after it
        order = [each["name"] for each in roles[name]["env"]]
        assert order.index("POSTGRES_PASSWORD") < order.index("RELAY_HISTORY_URL")
    assert {name for name, each in roles.items() if "POSTGRES_PASSWORD" in secrets_of(each)} == {
        "prod-api",
        "prod-history",
    }


@needs_helm
def test_the_ingress_leads_to_all_routes_but_the_metrics(tmp_path: Path) -> None:
    [ingress] = of_kind("Ingress", rendered(EVERYTHING, tmp_path)).values()
    [rule] = ingress["spec"]["rules"]

    def leads(path: str) -> bool:
        return any(
            path == each["path"] or (each["pathType"] == "Prefix" and path.startswith(f"{each['path']}/"))
            for each in rule["http"]["paths"]
        )

    routes = {path for _, path in ACCESS}
    assert {path for path in routes if not leads(path)} == {"/metrics"}
    assert leads("/ui")
    assert leads("/ui/login")


@needs_helm
def test_the_job_in_prometheus_is_the_one_of_the_rules_and_the_dashboard(tmp_path: Path) -> None:
    monitor = of_kind("ServiceMonitor", rendered(EVERYTHING, tmp_path))["prod"]
    [job] = [
        each["replacement"] for each in monitor["spec"]["endpoints"][0]["relabelings"] if each["targetLabel"] == "job"
    ]
    asked = {name for text in (RULES, DASHBOARD) for name in re.findall(r'job=\\?"([^"\\]+)', text.read_text())}
    assert asked == {job}


@needs_helm
def test_prometheus_has_the_key_of_the_metrics(tmp_path: Path) -> None:
    def key(values: Values) -> object:
        [monitor] = of_kind("ServiceMonitor", rendered(values, tmp_path)).values()
        return monitor["spec"]["endpoints"][0]["authorization"]["credentials"]

    monitored = LEAST | {"serviceMonitor": {"enabled": True}}
    assert key(monitored) == {"name": "webhook-relay", "key": "RELAY_METRICS_KEY"}
    assert key(EVERYTHING) == {"name": "relay-metrics", "key": "key"}


@needs_helm
def test_files_of_a_secret_are_where_settings_can_name_them(tmp_path: Path) -> None:
    manifests = rendered(EVERYTHING, tmp_path)
    for one in [*of_kind("Deployment", manifests).values(), *of_kind("Job", manifests).values()]:
        pod = one["spec"]["template"]["spec"]
        [volume] = [each for each in pod["volumes"] if each.get("secret") == {"secretName": "relay-files"}]
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
        assert mount == {"name": "files", "mountPath": "/etc/relay/files", "readOnly": True}
    assert "files" not in json.dumps(containers(rendered(LEAST, tmp_path)))


@needs_helm
def test_the_history_grows_with_what_it_has_not_read(tmp_path: Path) -> None:
    scaled = of_kind("ScaledObject", rendered(EVERYTHING, tmp_path))
    [trigger] = scaled["prod-history"]["spec"]["triggers"]
    read = trigger["metadata"]["topic"], trigger["metadata"]["consumerGroup"]
    assert read in Topics("stage.").informational_groups().items()


@needs_helm
def test_receivers_are_what_the_relay_reads_where_it_looks(tmp_path: Path) -> None:
    manifests = rendered(POOLED, tmp_path)
    for name, config in of_kind("ConfigMap", manifests).items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(config["data"]["receivers.yaml"])
        assert list(load_receivers_file(file).receivers) == ["ci"]
    for container in containers(manifests).values():
        [path] = [each["value"] for each in container["env"] if each["name"] == "RELAY_RECEIVERS_FILE"]
        assert Path(path).parent == Path(
            next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "receivers")
        )


@needs_helm
def test_each_pod_is_found_by_what_selects_it(tmp_path: Path) -> None:
    manifests = rendered(EVERYTHING, tmp_path)
    pods = {
        name: each["spec"]["template"]["metadata"]["labels"] for name, each in of_kind("Deployment", manifests).items()
    }

    def selected(selector: Mapping[str, str]) -> set[str]:
        return {name for name, labels in pods.items() if selector.items() <= labels.items()}

    for kind, place in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        found = {name: selected(each["spec"][place]["matchLabels"]) for name, each in of_kind(kind, manifests).items()}
        assert found == {name: {name} for name in pods}
    services = of_kind("Service", manifests)
    assert selected(services["prod"]["spec"]["selector"]) == {"prod-api"}
    assert selected(services["prod-metrics"]["spec"]["selector"]) == set(pods)
    monitor = of_kind("ServiceMonitor", manifests)["prod"]["spec"]["selector"]["matchLabels"]
    labels = {name: each["metadata"]["labels"] for name, each in services.items()}
    assert {name for name, found in labels.items() if monitor.items() <= found.items()} == {"prod-metrics"}


@needs_helm
def test_without_kafka_it_says_what_is_missing(tmp_path: Path) -> None:
    done = helm("template", "prod", values={}, tmp_path=tmp_path)
    assert done.returncode != 0
    assert "kafka.bootstrapServers is needed" in done.stderr
