"""`relay config` and `relay receivers` without a log."""

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from relay.cli import receivers_apply
from relay.cli.config import config
from relay.cli.receivers import receivers
from relay.control.apply import ApplyPreview, Diff
from relay.domain.errors import UserError
from tests.servers.forking import run

pytestmark = pytest.mark.thorough

GOOD = """
receivers:
  ci: {post_endpoint: "https://ci.example/", secret: hunter2, bearer_token: "${TOKEN}", retry_after: 10m}
  off: {post_endpoint: "https://off.example/", lane: shared, enabled: false, rate_limit: 5, window_size: 1m}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "receivers.yaml"
    path.write_text(GOOD)
    return path


def _run(group: click.Group, *args: str, **environ: str) -> str:
    result = CliRunner().invoke(group, args, env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_has_value_and_origin_and_no_secret() -> None:
    shown = json.loads(_run(config, "show", "-o", "json", RELAY_API_KEY="hunter2", RELAY_API_PORT="9"))
    by_name = {one["name"]: (one["value"], one["source"]) for one in shown}
    assert by_name["api_key"] == ("********", "RELAY_API_KEY")
    assert by_name["api_port"] == ("9", "RELAY_API_PORT")
    table = _run(config, "show", RELAY_API_KEY="hunter2").splitlines()
    assert table[0].split() == ["SETTING", "VALUE", "FROM"]
    assert ["api_key", "********", "RELAY_API_KEY"] in [line.split() for line in table]


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text("api_port: 7\n")
    assert f"{path}: api_port" in _run(config, "show", "--config", str(path))


def test_check_covers_settings_and_receivers(file: Path) -> None:
    lines = _run(config, "check", RELAY_RECEIVERS_FILE=str(file)).splitlines()
    assert lines[0].startswith("settings: ok, 1 set, ")
    assert lines[1] == f"{file}: receivers: 2, sources: 0; 1 of these cannot be used with this environment"
    assert lines[2].startswith("cannot be used with this environment: receivers.ci: bearer_token: ")
    lines = _run(config, "check", RELAY_RECEIVERS_FILE=str(file), TOKEN="t").splitlines()
    assert lines[1] == f"{file}: ok, receivers: 2, sources: 0"
    assert not any("cannot be used" in line for line in lines)


def test_check_wants_a_receivers_file_only_if_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "does not exist" in _run(config, "check")
    with pytest.raises(UserError, match=r"other\.yaml: cannot be read"):
        _run(config, "check", RELAY_RECEIVERS_FILE="other.yaml")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RELAY_API_KEY": "short"}, "RELAY_API_KEY: shorter than 16 characters"),
        ({"RELAY_API_HOST": "::"}, "RELAY_API_HOST: :: can be reached from outside"),
        ({"RELAY_EGRESS_PROXY": "ftp://x"}, "RELAY_EGRESS_PROXY: "),
        ({"RELAY_CA_FILE": "nope.pem"}, "nope.pem"),
        ({"RELAY_KAFKA_CA_FILE": "nope.pem", "RELAY_KAFKA_SECURITY_PROTOCOL": "SSL"}, "nope.pem"),
        (
            {
                "RELAY_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "RELAY_KAFKA_SASL_MECHANISM": "PLAIN",
                "RELAY_KAFKA_SASL_USERNAME": "u",
                "RELAY_KAFKA_SASL_PASSWORD": "p",
            },
            "SASL PLAIN without TLS",
        ),
        ({"RELAY_REDIS_URL": "redis+sentinel://host"}, "it has to name the master"),
        ({"RELAY_MAX_REQUESTS": "1000000000"}, "RELAY_MAX_REQUESTS: "),
        ({"RELAY_API_BODY_MEMORY": "1"}, "RELAY_API_BODY_MEMORY: 1 is too small"),
        ({"RELAY_NOTICE_EMAIL_TO": "ops@a.example"}, "e-mails need RELAY_NOTICE_SMTP_URL"),
        ({"SENTRY_DSN": "nonsense"}, "SENTRY_DSN is not a DSN"),
        ({"RELAY_PORTAL_STRINGS": "nope.json"}, "RELAY_PORTAL_STRINGS"),
        ({"RELAY_HISTORY_URL": "postgresql://relay@host:port/relay"}, "RELAY_HISTORY_URL: not the URL of a history"),
    ],
)
def test_check_refuses_what_run_refuses(
    environ: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for `run`: nothing listens where it would connect, and it fails before that."""
    monkeypatch.chdir(tmp_path)
    nowhere = {"RELAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "RELAY_API_PORT": "0"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    for command in (["run", "--processes", "1"], ["config", "check"]):
        done = run(*command, environ=clean | nowhere | environ)
        assert done.returncode == 2, (command, done)
        assert said in done.stderr, command
        assert "Traceback" not in done.stderr


def test_check_says_all_that_is_refused_and_only_what_these_roles_mind(tmp_path: Path) -> None:
    exposed = {"RELAY_API_HOST": "0.0.0.0"}  # noqa: S104
    with pytest.raises(UserError) as caught:
        _run(config, "check", RELAY_API_KEY="short", RELAY_CA_FILE=str(tmp_path / "no.pem"))
    assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(UserError, match="RELAY_API_HOST"):
        _run(config, "check", **exposed)
    assert "settings: ok" in _run(config, "check", "--roles", "to-receiver,to-sender", **exposed)


def test_check_notes_a_secret_that_can_be_guessed(file: Path) -> None:
    environ = {"RELAY_RECEIVERS_FILE": str(file), "TOKEN": "t"}
    assert "note: RELAY_ANSWER_SECRET is shorter" in _run(config, "check", RELAY_ANSWER_SECRET="short", **environ)
    assert "note: " not in _run(config, "check", RELAY_ANSWER_SECRET="a" * 32, **environ)


def test_schema_is_one_json_document() -> None:
    assert json.loads(_run(config, "schema"))["title"] == "receivers.yaml"


def test_receivers_check_says_what_was_understood(file: Path) -> None:
    lines = _run(receivers, "check", str(file)).splitlines()
    assert lines == [
        f"{file}: receivers: 2, sources: 0; 1 of these cannot be used with this environment",
        "  ci: POST https://ci.example/; dedicated lane; order: source; rate: unlimited; retry: every 10m, 20 times; "
        "answer: in the response or by callback, optional within 1h",
        "  off: switched off; POST https://off.example/; shared lane; order: source; rate: 5/1m; "
        "retry: 5s to 1h, 20 times; answer: in the response or by callback, optional within 1h",
        "cannot be used with this environment: receivers.ci: bearer_token: the environment variable TOKEN is not set, "
        "or RELAY_SECRETS_FROM does not allow it",
        "note: relay-answer-url is off: RELAY_ANSWER_SECRET is not set (make one with: openssl rand -hex 32); "
        "without it, these receivers cannot answer after a 202: ci, off",
        "(The notes are about `relay run`. `relay dev` has an answer secret, and sends to this machine.)",
    ]
    assert "cannot be used" not in _run(receivers, "check", str(file), TOKEN="t")
    assert "cannot be used" in _run(receivers, "check", str(file), TOKEN="t", RELAY_SECRETS_FROM="OTHER_*")


BLOCKED = (
    "ci: with these settings the relay would send nothing to http://10.0.0.1/a: 10.0.0.1 is not a public address and "
    "in none of the allowed networks; RELAY_ALLOW_PRIVATE_NETWORKS=10.0.0.1/32 would allow it"
)


def test_receivers_check_names_urls_to_which_nothing_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "receivers.yaml"
    file.write_text("receivers: {ci: {post_endpoint: 'http://10.0.0.1/a'}, cd: {post_endpoint: 'https://cd.example/'}}")
    notes = json.loads(_run(receivers, "check", str(file), "-o", "json"))["notes"]
    assert [note for note in notes if "send nothing" in note] == [BLOCKED]
    for allowed in ({"RELAY_ALLOW_PRIVATE_NETWORKS": "10.0.0.0/8"}, {"RELAY_EGRESS_PROXY": "http://proxy:3128"}):
        assert "send nothing" not in _run(receivers, "check", str(file), **allowed)


def test_receivers_check_notes_expressions_without_their_marks(tmp_path: Path) -> None:
    file = tmp_path / "receivers.yaml"
    file.write_text("""
        receivers:
          ci:
            post_endpoint: 'https://ci.example/'
            request:
              json: {a: '{{ payload.ref }}', b: '${{ {message.id: 1} }}', c: '{"message": {"body": 1}}', d: ['{x}']}
            status_steps: [{url: 'builds/{response.id}', until: 'true'}]
          cd: {post_endpoint: 'https://cd.example/', status_endpoint: 'https://cd.example/{response.id}'}
    """)
    notes = json.loads(_run(receivers, "check", str(file), "-o", "json"))["notes"]
    why = "is sent as it is; an expression is written ${{ ... }}"
    assert [note for note in notes if "an expression" in note] == [
        f"receivers.ci.request.json.a: {{{{ payload. {why}",
        f"receivers.ci.status_steps[0].url: {{response. {why}",
    ]


def test_receivers_check_notes_what_is_probably_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "receivers.yaml"
    file.write_text("""
        sources: {gh: {inbound: {kind: github, secret: $HOOK, receivers: [ci, cd]}}}
        receivers:
          ci: {post_endpoint: 'https://ci.example/', bearer_token: $TOKEN, headers: {a: Token $B, b: $5, c: "${C}"}}
    """)
    written = "$NAME without braces is sent or signs as it is; a variable is written ${NAME}"
    answers = {"RELAY_ANSWER_SECRET": "a" * 32, "RELAY_PUBLIC_URL": "https://relay.example"}
    notes = json.loads(_run(receivers, "check", str(file), "-o", "json", **answers))["notes"]
    assert notes == [
        f"receivers.ci.bearer_token: {written}",
        f"receivers.ci.headers.a: {written}",
        f"sources.gh.inbound.secret: {written}",
        "sources.gh.inbound.receivers: cd is not in this file; until it is registered, webhooks of this source are "
        "rejected",
    ]
    lines = _run(receivers, "check", str(file), C="c", **answers).splitlines()
    assert lines[-4:] == [f"note: {note}" for note in notes]


def test_receivers_apply_names_urls_to_which_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unchanged(*_: object, **__: object) -> ApplyPreview:
        return ApplyPreview(Diff(), {})

    monkeypatch.setattr(receivers_apply, "_preview", unchanged)
    file = tmp_path / "receivers.yaml"
    file.write_text("receivers: {ci: {post_endpoint: 'http://10.0.0.1/a'}, cd: {post_endpoint: 'https://cd.example/'}}")
    command = ("apply", "--dry-run", "--file", str(file))
    assert f"note: {BLOCKED}" in _run(receivers, *command).splitlines()
    assert BLOCKED in json.loads(_run(receivers, *command, "-o", "json"))["notes"]
    assert "send nothing" not in _run(receivers, *command, RELAY_ALLOW_PRIVATE_NETWORKS="10.0.0.0/8")


def test_receivers_check_raises_one_clear_message(file: Path) -> None:
    file.write_text(GOOD.replace("retry_after", "retry_afte"))
    with pytest.raises(UserError) as caught:
        _run(receivers, "check", RELAY_RECEIVERS_FILE=str(file))
    assert str(caught.value) == f"{file}: receivers.ci.retry_afte: unknown field; did you mean 'retry_after'?"


def test_receivers_list_shows_effective_values_and_no_secret(file: Path) -> None:
    listed = json.loads(_run(receivers, "list", "--file", str(file), "-o", "json"))
    assert listed["ci"]["secret"] == "********"
    assert listed["ci"]["bearer_token"] == "${TOKEN}"
    assert "TOKEN is not set" in listed["ci"]["refused"]
    assert listed["off"]["refused"] is None
    assert listed["ci"]["retry"]["base"] == 600
    assert listed["ci"]["retry"]["jitter"] is False
    assert listed["off"]["max_in_flight"] == 32
    table = _run(receivers, "list", "--file", str(file))
    assert "hunter2" not in table
    assert "cannot be used with this environment: receivers.ci: bearer_token: " in table
    table = _run(receivers, "list", "--file", str(file), TOKEN="t")
    *rows, note = table.splitlines()[1:]
    assert note == f"(The receivers of {file}; --registered lists all in effect, those of the API, too.)"
    assert [line.split()[:4] for line in rows] == [
        ["ci", "yes", "https://ci.example/", "dedicated"],
        ["off", "no", "https://off.example/", "shared"],
    ]
