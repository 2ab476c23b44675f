"""Tests of presets over HTTP: an entry is shown with the effective fields, but stored and changed as it was written."""

import json
from typing import Any

import pytest

from tests.integration.api_rig import document, problem
from tests.integration.test_api_registration import CANARY, URL, Rig
from tests.integration.test_api_registration import rig as rig


async def test_an_entry_with_a_preset_is_kept_as_it_was_written(rig: Rig) -> None:
    made = await rig.create("ci", preset="jenkins", headers={"Authorization": CANARY}, poll={"base": 1})
    assert made["given"] == ["headers", "lane", "poll", "post_endpoint", "preset", "secret"]
    assert made["from_preset"] == ["answer_deadline", "outcomes", "request", "status_steps"]
    assert (made["settings"]["poll"]["base"], made["settings"]["poll"]["cap"]) == (1.0, 30.0)
    assert len(made["settings"]["status_steps"]) == 2
    kept = json.loads(rig.on_the_log.splitlines()[-1])["entry"]
    assert kept.keys() == set(made["given"])
    assert (kept["preset"], kept["poll"]) == ("jenkins", {"base": 1.0})
    assert CANARY not in rig.on_the_log.decode()
    receiver = rig.receiver("ci")
    assert (receiver.poll.base, receiver.poll.cap, len(receiver.status_steps)) == (1.0, 30.0, 2)


async def test_a_patch_changes_what_was_written(rig: Rig) -> None:
    await rig.create("ci", preset="jenkins", poll={"base": 1})
    reply = await rig.ask("PATCH", "/v1/receivers/ci", {"preset": "gitlab@1", "poll": None})
    changed: Any = document(reply)
    assert (reply.status, changed["settings"]["preset"], changed["settings"]["poll"]["cap"]) == (200, "gitlab@1", 60.0)
    assert len(changed["settings"]["status_steps"]) == 1
    reply = await rig.ask("PATCH", "/v1/receivers/ci", {"preset": None})
    changed = document(reply)
    assert (changed["from_preset"], changed["settings"]["status_steps"]) == ([], [])


async def test_an_unknown_preset_is_one_mistake(rig: Rig) -> None:
    reply = await rig.ask("POST", "/v1/receivers", {"name": "ci", "post_endpoint": URL, "preset": "circle"})
    assert problem(reply, 422, "invalid-receiver")["errors"] == [
        {"detail": "unknown preset 'circle'; did you mean 'circleci'?", "pointer": "/preset"}
    ]


@pytest.mark.parametrize("preset", ["github", "gitlab"])
async def test_a_credential_of_a_callback_does_not_follow_another_preset(rig: Rig, preset: str) -> None:
    entry = {"source_id": "gh", "preset": preset, "callback": {"bearer_token": CANARY}, "inbound": {"secret": "s"}}
    assert (await rig.ask("POST", "/v1/sources", entry)).status == 201
    callback = {"allow_origins": ["https://evil.example"]}
    reply = await rig.ask("PATCH", "/v1/sources/gh", {"callback": callback})
    errors = problem(reply, 409, "credentials-needed")["errors"]
    assert [each["pointer"] for each in errors] == ["/callback/bearer_token"]
