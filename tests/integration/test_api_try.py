"""Tests of dry runs over the API and by the command: they show what would be sent, and send it only with --send."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from relay.api.shares import LEAST_BETWEEN_S
from relay.cli.receivers import receivers
from relay.config.receivers_file import parse_receivers_file
from relay.delivery.egress import USER_AGENT
from relay.domain.exchange import NoResponse, Response
from relay.domain.receiver import Source
from tests.integration.api_rig import Reply, Rig, document, problem, running_api
from tests.unit.test_trial import ENVIRON, JENKINS, PAYLOAD, PLAIN

PATH = "/v1/receivers/ci/try"
TOKEN = 'canary "token"+4711'
RAW = "HTTP/1.1 100 Continue\r\n\r\nHTTP/2 201 Created\r\nLocation: https://ci.example/queue/7/\r\n\r\n"
STARTED = {"status": 200, "body": {"executable": {"url": "https://ci.example/job/app/5/"}}}
BUILT = {"status": 200, "headers": {}, "body": '{"building": false, "result": "success"}'}


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    async with running_api() as running:
        use(running, monkeypatch, JENKINS.replace("BY:", "TOKEN: '${TOKEN}', BY:"))
        yield running


def use(rig: Rig, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    found, sources = parse_receivers_file(file).resolve(ENVIRON | {"TOKEN": TOKEN.replace('"', "")})
    rig.directory.receivers |= found
    monkeypatch.setattr(rig.directory, "source", lambda source_id: sources.get(source_id, Source(source_id)))


async def tried(rig: Rig, path: str = PATH, **body: Any) -> Reply:
    return await rig.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})


async def test_what_would_be_sent_is_shown_without_secrets_and_nothing_is_sent(rig: Rig) -> None:
    reply = await tried(rig, payload=PAYLOAD, source="github", id="m-1", headers={"x-team": "core"})
    view = document(reply)
    assert (view["name"], view["source_id"], view["message_id"]) == ("ci", "github", "m-1")
    assert view["request"]["body"] == "BRANCH=main&TOKEN=********&BY=me"
    assert view["request"]["headers"]["authorization"] == "********"
    assert (view["outcome"], view["rule"], view["next"], view["callback"], view["errors"]) == (None,) * 4 + ([],)
    assert "4711" not in reply.text
    assert rig.transport.requests == []


async def test_pasted_responses_lead_to_the_next_step_and_to_the_callback(rig: Rig) -> None:
    view = document(await tried(rig, payload=PAYLOAD, source="github", response=RAW))
    assert (view["outcome"], view["rule"]) == ("accepted", "outcomes[0]: response.status == 201")
    assert view["next"]["url"] == "https://ci.example/queue/7/api/json"
    statuses = [json.dumps(STARTED), BUILT]
    view = document(await tried(rig, payload=PAYLOAD, source="github", response=RAW, status_responses=statuses))
    assert [each["meaning"] for each in view["readings"]] == ["finished", "answer"]
    assert (view["next"], json.loads(view["callback"]["body"])) == (None, {"state": "success"})


async def test_the_ids_in_a_status_url_are_shown(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        rig,
        monkeypatch,
        PLAIN.replace("https://ci.example/jobs", "'https://ci.example/jobs/{message_id}/{webhook_id}'"),
    )
    message_id = "550e8400-e29b-41d4-a716-446655440000"
    view = document(await tried(rig, payload=1, source="github", id=message_id, response="HTTP/1.1 202 Accepted"))
    webhook_id = view["request"]["headers"]["webhook-id"]
    assert view["next"]["url"] == f"https://ci.example/jobs/{message_id}/{webhook_id}"


async def test_faults_are_said_field_by_field(rig: Rig) -> None:
    view = document(await tried(rig, text="{}", source="github"))
    assert view["request"] is None
    assert [each["place"] for each in view["errors"]] == ["keep.sha", "request.form.BRANCH", "request.form.BY"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "either payload"),
        ({"payload": 1, "text": "1"}, "either payload"),
        ({"payload": 1, "response": "nonsense"}, "status line"),
        ({"payload": 1, "response": "HTTP/1.1 abc"}, "status line"),
        ({"payload": 1, "response": {"status": 7}}, "not an HTTP status"),
        ({"payload": 1, "status_responses": [STARTED]}, "response to the POST"),
        ({"payload": 1, "source": "a\nb"}, "ce_source"),
        ({"payload": 1, "headers": {"cookie": "a"}}, "cookie"),
        ({"payload": 1, "more": 2}, "more"),
    ],
)
async def test_a_wrong_request_is_refused(rig: Rig, body: dict[str, Any], words: str) -> None:
    found = problem(await tried(rig, **body), 400, "invalid-request")
    assert words in json.dumps(found)


async def test_receivers_that_cannot_be_tried(rig: Rig) -> None:
    rig.directory.refused["bad"] = "the environment variable X is not set"
    problem(await tried(rig, "/v1/receivers/nobody/try", payload=1), 404, "not-found")
    problem(await tried(rig, "/v1/receivers/bad/try", payload=1), 422, "invalid-receiver")


async def test_a_payload_is_sent_once_and_its_real_response_judged(rig: Rig) -> None:
    rig.transport.reply = Response(201, {"location": "https://ci.example/queue/7/"}, b"")
    view = document(await tried(rig, "/v1/receivers/ci/test", payload=PAYLOAD, source="github"))
    [sent] = rig.transport.requests
    assert sent.body == b"BRANCH=main&TOKEN=canary+token%2B4711&BY=me"
    assert (view["response"]["status"], view["trial"]["outcome"]) == (201, "accepted")
    assert view["trial"]["next"]["url"] == "https://ci.example/queue/7/api/json"
    problem(await tried(rig, "/v1/receivers/ci/test", payload=1, response=RAW), 400, "invalid-request")


async def test_a_test_without_response_is_judged_too(rig: Rig) -> None:
    rig.transport.reply = NoResponse("refused", "", sent=False)
    view = document(await tried(rig, "/v1/receivers/ci/test", payload=PAYLOAD, source="github"))
    assert (view["trial"]["outcome"], view["trial"]["rule"]) == ("not_processed", None)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RELAY_API_URL", "TOKEN", "KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "payload").write_text(json.dumps(PAYLOAD))
    (tmp_path / "empty").write_text("{}")
    (tmp_path / "posted").write_text(RAW)
    (tmp_path / "started").write_text(json.dumps(STARTED))
    (tmp_path / "built").write_text(json.dumps(BUILT))
    return tmp_path


def command(*words: str) -> Result:
    with capture_logs():  # of the API, which is in the same process: they are no output of the command
        return CliRunner().invoke(receivers, ["try", "ci", "--source", "github", *words])


async def through(rig: Rig, *words: str) -> Result:
    return await asyncio.to_thread(command, *words, "--api", rig.url)


async def test_the_command_shows_request_meaning_and_callback(rig: Rig, folder: Path) -> None:
    responses = ("--response", "posted", "--response", "started", "--response", "built")
    result = await through(rig, "--payload", "payload", *responses)
    assert result.exit_code == 0, result.output
    for words in (
        "> POST https://ci.example/job/app/buildWithParameters",
        "BRANCH=main&TOKEN=********&BY=me",
        "response: accepted (outcomes[0]: response.status == 201)",
        "status response 2: answer",
        "callback:\n> POST https://api.github.example/statuses/abc",
        '{"state":"success"}',
    ):
        assert words in result.output
    assert "4711" not in result.output
    assert rig.transport.requests == []
    result = await through(rig, "--payload", "payload", "--response", "posted", "-o", "json")
    assert json.loads(result.output)["next"]["url"] == "https://ci.example/queue/7/api/json"


async def test_the_command_ends_with_1_for_a_field_that_cannot_be_made(rig: Rig, folder: Path) -> None:
    result = await through(rig, "--payload", "empty")
    assert result.exit_code == 1
    assert "error: request.form.BRANCH: `payload.ref`: there is no field 'ref'\n" in result.output


async def test_the_command_sends_with_send(rig: Rig, folder: Path) -> None:
    rig.transport.reply = Response(201, {"location": "https://ci.example/queue/7/"}, b"")
    result = await through(rig, "--payload", "payload", "--send")
    assert result.exit_code == 0, result.output
    assert len(rig.transport.requests) == 1
    assert "< 201 in 0 ms" in result.output
    assert "next:\n> GET https://ci.example/queue/7/api/json" in result.output
    rig.clock.now += LEAST_BETWEEN_S
    result = await through(rig, "--payload", "payload", "--send", "-o", "json")
    view = json.loads(result.output)
    assert (view["response"]["status"], view["outcome"]) == (201, "accepted")
    assert view["rule"] == "outcomes[0]: response.status == 201"
    assert view["next"]["url"] == "https://ci.example/queue/7/api/json"
    rig.transport.requests.clear()
    result = await through(rig, "--payload", "payload", "--send", "--response", "posted")
    assert result.exit_code == 1
    assert rig.transport.requests == []


def test_a_file_is_tried_without_a_relay(folder: Path) -> None:
    (folder / "receivers.yaml").write_text(JENKINS)
    result = command("--payload", "payload", "--response", "posted", "-o", "json")
    assert result.exit_code == 0, result.output
    view = json.loads(result.output)
    assert view["request"]["body"] == "BRANCH=main&BY=me"
    assert view["request"]["headers"]["user-agent"] == USER_AGENT
    assert view["next"]["url"] == "https://ci.example/queue/7/api/json"
    assert view["notes"] == [f"{name} is not set here: a placeholder takes its place" for name in ("KEY", "TOKEN")]
    (folder / "other.yaml").write_text(PLAIN)
    assert (
        '"url": "https://ci.example/hooks"'
        in command("--file", "other.yaml", "--payload", "empty", "-o", "json").output
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--payload", "nowhere"), "nowhere"),
        (("--payload", "payload", "--response", "payload"), "status line"),
        (("--payload", "payload", "--header", "x"), "name: value"),
        (("--payload", "payload", "--file", "empty.yaml"), "there is no receiver ci"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: tuple[str, ...], fault: str) -> None:
    (folder / "receivers.yaml").write_text(JENKINS)
    (folder / "empty.yaml").write_text("receivers: {other: {post_endpoint: https://ci.example/}}")
    result = command(*words)
    assert result.exit_code != 0
    assert fault in str(result.exception) + result.output
    assert "Traceback" not in result.output
