"""Tests of the compose file and the Dockerfile that need no container engine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import click
import jsonschema
import pytest
import yaml

from relay.api.origin_check import WebRules
from relay.cli.group import relay
from relay.config.own_address import check_exposure, check_key, is_loopback, own_names
from relay.config.receivers_file import load_receivers_file
from relay.config.setting_layers import env_name, load_settings
from relay.config.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "webhook-relay"}
CONFIGURED = {name: service for name, service in OURS.items() if "environment" in service}
SECRETS = {
    "REDIS_PASSWORD": "redis-pw",
    "RELAY_API_KEY": "a key of 32 characters, or so it is",
    "RELAY_METRICS_KEY": "a third secret of 32 characters",
    "RELAY_ANSWER_SECRET": "another secret of 32 characters",
    "POSTGRES_PASSWORD": "postgres-pw",
    "GRAFANA_PASSWORD": "grafana-pw",
}
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolated(text: str, given: Mapping[str, str]) -> str:
    """`${NAME}`, `${NAME:-default}` and `${NAME:?message}`, as Compose has them."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if given.get(name):
            return given[name]
        assert kind != "?", f"{name} is required: {rest}"
        return rest or ""

    return VARIABLE.sub(value, text)


class Instruction(NamedTuple):
    name: str
    text: str


def dockerfile() -> list[Instruction]:
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Instruction(*line.split(maxsplit=1)) for line in lines]


def stage(number: int) -> list[Instruction]:
    starts = [index for index, one in enumerate(dockerfile()) if one.name == "FROM"]
    return dockerfile()[starts[number] : [*starts, None][number + 1]]


# --- compose.yaml


def test_the_compose_file_has_the_form_of_one() -> None:
    schema = json.loads((ROOT / "tests/integration/data/compose.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(COMPOSE)


def test_the_compose_file_is_one_by_the_compose_specification() -> None:
    schemas = files("check_jsonschema.builtin_schemas.vendor")
    specification = json.loads(schemas.joinpath("compose-spec.json").read_text())
    check = jsonschema.validators.validator_for(specification)(specification)
    check.validate(COMPOSE)
    assert not check.is_valid(COMPOSE | {"services": SERVICES | {"api": OURS["api"] | {"mem_limits": "512m"}}})


def test_what_services_refer_to_is_there() -> None:
    for service in SERVICES.values():
        assert set(service["networks"]) <= COMPOSE["networks"].keys()
        assert set(service.get("depends_on", {})) <= SERVICES.keys()
        mounted = {interpolated(volume, {}).split(":")[0] for volume in service.get("volumes", [])}
        assert {each for each in mounted if not each.startswith(".")} <= COMPOSE["volumes"].keys()
        if "build" in service:
            assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def _has_compose() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0


if _has_compose():  # its client needs no engine for this; where it is not installed, the schema above has to do

    def test_docker_compose_accepts_it() -> None:
        options = ["--file", str(DOCKER / "compose.yaml"), "--profile", "demo"]
        command = ["docker", "compose", *options, "config", "--quiet"]
        done = subprocess.run(command, env={**os.environ, **SECRETS}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_every_worker_is_a_service_and_so_are_api_and_topics() -> None:
    commands = {name: shlex.join(service["command"]) for name, service in OURS.items()}
    assert {
        "topics": "topics apply",
        "api": "run --roles api",
        "from-sender": "worker from-sender",
        "to-receiver": "worker to-receiver",
        "from-receiver-async": "worker from-receiver-async",
        "to-sender": "worker to-sender",
        "failed-messages": "worker failed-messages",
        "history": "worker history",
    }.items() <= commands.items()


@pytest.mark.parametrize("name", CONFIGURED)
def test_the_settings_of_a_service_are_settings_of_the_relay(name: str) -> None:
    environment: dict[str, str] = CONFIGURED[name]["environment"]
    ours = {variable for variable in environment if variable.startswith("RELAY_")}
    assert ours <= {env_name(field) for field in Settings.model_fields}
    settings = load_settings({}, {name: interpolated(value, SECRETS) for name, value in environment.items()})
    assert settings.redis_url.get_secret_value() == "redis://:redis-pw@redis:6379/0"
    assert settings.kafka_bootstrap_servers == "kafka:9092"
    assert settings.api_key is not None
    [mount] = CONFIGURED[name]["volumes"]
    assert str(settings.receivers_file.parent) == mount.split(":")[-2]


def test_the_api_is_served_beyond_its_container_with_a_key_and_under_the_names_that_reach_it() -> None:
    environment = {name: interpolated(value, SECRETS) for name, value in SERVICES["api"]["environment"].items()}
    settings = load_settings({}, environment)
    assert not is_loopback(settings.api_host)
    check_exposure(settings)
    check_key(settings)
    rules = WebRules(own_names(settings), settings.public_url)
    assert rules.is_ours("api:8080")
    assert rules.is_ours("localhost:8080")


def test_the_example_of_settings_names_what_is_needed_and_holds_no_secret() -> None:
    lines = (DOCKER / ".env.example").read_text().splitlines()
    pairs = dict(line.removeprefix("# ").split("=", 1) for line in lines if re.match(r"(# )?[A-Z_]+=", line))
    used = {match[1] for match in VARIABLE.finditer((DOCKER / "compose.yaml").read_text())}
    assert pairs.keys() <= used
    assert {name: pairs[name] for name in SECRETS} == dict.fromkeys(SECRETS, "")


def test_without_its_secrets_it_does_not_start() -> None:
    for name in SECRETS:
        assert re.search(rf"\$\{{{name}:\?", (DOCKER / "compose.yaml").read_text())


def parse(command: click.Command, args: list[str], parent: click.Context | None = None) -> None:
    """Parse `args` as the command line does, options, arguments and all, without running anything."""
    with command.make_context(command.name, args, parent=parent) as context:
        if isinstance(command, click.Group):
            _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            assert inner is not None
            parse(inner, rest, context)


@pytest.mark.parametrize("name", OURS)
def test_the_command_of_a_service_is_a_command_of_the_relay(name: str) -> None:
    parse(relay, list(OURS[name]["command"]))


def test_the_check_of_commands_can_fail() -> None:
    for wrong in (["worker", "nobody"], ["run", "--rolls", "api"], ["sink", "--port", "high"]):
        with pytest.raises(click.UsageError):
            parse(relay, wrong)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_rights_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    # Kafka's start script writes its configuration, and Compose copies a secret of a variable into the container.
    assert service.get("read_only", False) is (name != "kafka" and "secrets" not in service)
    assert name in OURS or "ports" in service or service["networks"] == ["inside"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_may_take_all_the_memory(name: str) -> None:
    assert re.fullmatch(r"\d+[mg]", SERVICES[name]["mem_limit"])


def test_what_is_mounted_from_here_is_there_and_a_directory() -> None:
    """A mounted file stays the old one when an editor replaces it; a mounted directory does not."""
    mounts = [interpolated(each, {}) for service in SERVICES.values() for each in service.get("volumes", ())]
    ours = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert len(set(ours)) == 4
    assert all((DOCKER / path).is_dir() for path in ours)


def test_prometheus_asks_every_service_of_the_relay_where_it_answers() -> None:
    scraped = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    [relays] = [one for one in scraped if one["job_name"] == "relay"]
    asked = {target for one in relays["static_configs"] for target in one["targets"]}
    found = {f"{name}:{one['port']}" for one in relays["dns_sd_configs"] for name in one["names"]}
    ports = {name: service["environment"].get("RELAY_METRICS_PORT", "8080") for name, service in CONFIGURED.items()}
    assert asked | found == {f"{name}:{port}" for name, port in ports.items() if name != "topics"}
    assert asked == {f"{name}:{ports[name]}" for name in ports if "ports" in SERVICES[name]}, "others may be scaled"


def test_prometheus_has_the_key_of_the_metrics() -> None:
    [scraped] = [
        one
        for one in yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
        if one["job_name"] == "relay"
    ]
    [name] = SERVICES["prometheus"]["secrets"]
    assert scraped["authorization"]["credentials_file"] == f"/run/secrets/{name}"
    variable = COMPOSE["secrets"][name]["environment"]
    for name, service in CONFIGURED.items():
        environment = {key: interpolated(value, SECRETS) for key, value in service["environment"].items()}
        settings = load_settings({}, {key: value for key, value in environment.items() if key.startswith("RELAY_")})
        assert settings.metrics_key is not None, name
        assert settings.metrics_key.get_secret_value() == SECRETS[variable]


def test_the_history_is_kept_where_the_api_looks() -> None:
    urls = {CONFIGURED[name]["environment"]["RELAY_HISTORY_URL"] for name in ("api", "history")}
    assert len(urls) == 1
    environment = SERVICES["postgres"]["environment"]
    user, database = environment["POSTGRES_USER"], environment["POSTGRES_DB"]
    [url] = urls
    assert interpolated(url, SECRETS) == f"postgresql://{user}:postgres-pw@postgres:5432/{database}"


def test_the_log_and_the_state_are_durable() -> None:
    redis, kafka = SERVICES["redis"], SERVICES["kafka"]
    words = shlex.join(redis["command"])
    assert "--appendonly yes" in words
    assert "--maxmemory-policy noeviction" in words
    assert redis["volumes"] == ["redis-data:/data"]
    assert kafka["volumes"] == [f"kafka-data:{kafka['environment']['KAFKA_LOG_DIRS']}"]
    assert kafka["environment"]["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_without_a_word_nothing_is_sent_anywhere() -> None:
    [mount] = {interpolated(service["volumes"][0], {}) for service in CONFIGURED.values()}
    known = load_receivers_file(DOCKER / mount.split(":")[0] / "receivers.yaml")
    assert not known.receivers
    assert not known.sources


def test_the_demo_receivers_are_valid_and_reach_the_sink() -> None:
    known = load_receivers_file(DOCKER / "demo" / "receivers.yaml")
    command = SERVICES["sink"]["command"]
    port = command[command.index("--port") + 1]
    assert {entry.post_endpoint for entry in known.receivers.values()} == {f"http://sink:{port}/hooks"}


# --- Dockerfile


def test_the_image_runs_as_nobody_special_and_says_how_it_is() -> None:
    instructions = {one.name: one.text for one in stage(1)}
    assert instructions["USER"] == "10001:10001"
    assert json.loads(instructions["ENTRYPOINT"]) == ["relay"]
    parse(relay, json.loads(instructions["CMD"]))
    settings = re.findall(r"(RELAY_\w+)=", instructions["ENV"])
    assert set(settings) <= {env_name(field) for field in Settings.model_fields}


class Livez(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write no log line."""


@pytest.fixture
def livez_port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Livez)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("variable", ["RELAY_METRICS_PORT", "RELAY_API_PORT"])
@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_asks_whether_it_lives(
    livez_port: int, monkeypatch: pytest.MonkeyPatch, variable: str, status: int, healthy: bool
) -> None:
    monkeypatch.setattr(Livez, "status", status)
    [check] = [one.text for one in stage(1) if one.name == "HEALTHCHECK"]
    command = json.loads(check[check.index("CMD") + 3 :])
    assert command[0] == "python"
    # Docker's client gives each container the proxy of its own configuration.
    environ = {variable: str(livez_port), "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, *command[1:]], env=environ, capture_output=True, check=False)
    assert (done.returncode == 0) is healthy


def test_what_is_copied_into_the_image_is_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {source for one in stage(0) if one.name == "COPY" for source in one.text.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


class Prefix:
    """A directory that stands for the root of the build stage's file system."""

    def __init__(self, root: Path) -> None:
        self.opt, self.work = root / "opt", root / "src"
        self.opt.mkdir()
        self.work.mkdir()

    def copy(self, text: str) -> None:
        *sources, target = text.split()
        for source in sources:
            into = self.work / target / Path(source).name if target.endswith("/") else self.work / target
            into.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, into)

    def run(self, text: str) -> None:
        python = Path(sys.base_prefix) / "bin" / "python3"
        command = text.replace("/opt/", f"{self.opt}/").replace("python -m venv", f"{python} -m venv")
        environ = {**os.environ, "VERSION": "3.4.5"}  # an argument of the build
        del environ["SSL_CERT_FILE"]  # pip needs the authorities of the system
        done = subprocess.run(
            ["sh", "-ec", command], cwd=self.work, env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode and "NewConnectionError" in done.stderr and not os.environ.get("CI"):
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def prefix() -> Iterator[Prefix]:
    with tempfile.TemporaryDirectory(prefix="relay") as short:  # pip writes the path into #! lines, which are limited
        yield Prefix(Path(short))


@pytest.mark.timeout(600)
def test_the_build_stage_gives_a_relay_that_runs(prefix: Prefix) -> None:
    for name, text in stage(0):
        if name == "COPY":
            prefix.copy(text)
        elif name == "RUN":
            prefix.run(text)
    built = prefix.opt / "relay" / "bin"

    def output(*command: str) -> str:
        done = subprocess.run(
            command, cwd=prefix.opt, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert output(str(built / "relay"), "version").startswith("relay 3.4.5 ")
    shutil.rmtree(prefix.work)  # nothing of the sources is needed any more
    found = output(
        str(built / "python"), "-c", "import relay.workers, relay.sink.samples as s; print(relay.__file__, *s.names())"
    )
    assert found.startswith(str(prefix.opt))
    assert "github.push" in found
    scripts = {path.name for path in (ROOT / "relay/state/redis/scripts").glob("*.lua")}
    assert {
        path.name for path in prefix.opt.glob("relay/lib/python*/site-packages/relay/state/redis/scripts/*.lua")
    } == scripts
