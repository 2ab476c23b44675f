"""Tests of the catalogue of event types over HTTP and by `relay events`, and of payloads checked on arrival."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay.cli.event_types import events
from relay.cli.trigger import trigger
from tests.integration.api_rig import Rig, document, problem, run_command, running_api
from workers.dependencies import Meter

PUSH: Any = {
    "description": "Commits were pushed.",
    "versions": [
        {
            "version": 1,
            "schema": {"type": "object", "required": ["ref"], "properties": {"ref": {"type": "string"}}},
            "examples": [{"ref": "refs/heads/main"}],
        }
    ],
}
PUSH_PATH = "/v1/event-types/push"
MESSAGES = "/v1/sources/github/messages?receiver=ci&type=push"
JSON = {"Content-Type": "application/json"}


class CountingMeter(Meter):
    def __init__(self) -> None:
        self.faults: list[str] = []

    def not_by_schema(self, event_schemas: str) -> None:
        self.faults.append(event_schemas)


METER = CountingMeter()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    METER.faults.clear()
    async with running_api(meter=METER) as found:
        yield found


async def put(rig: Rig, path: str = PUSH_PATH, entry: object = PUSH) -> Any:
    return await rig.request("PUT", path, json.dumps(entry).encode(), JSON)


async def test_an_event_type_is_declared_listed_changed_and_removed(rig: Rig) -> None:
    made = document(await put(rig))
    assert made == {"type": "push", "deprecated": False, **PUSH}
    await put(rig, "/v1/event-types/a%20b", {})
    assert document(await rig.get(PUSH_PATH)) == made
    first = document(await rig.get("/v1/event-types?limit=1"))
    assert [each["type"] for each in first["items"]] == ["a b"]
    rest = document(await rig.get(f"/v1/event-types?cursor={first['cursor']}"))
    assert (rest["items"], rest["cursor"]) == ([made], None)
    changed = document(await put(rig, entry={**PUSH, "deprecated": True}))
    assert changed["deprecated"]
    assert (await rig.request("DELETE", PUSH_PATH)).status == 200
    problem(await rig.get(PUSH_PATH), 404, "not-found")
    problem(await rig.request("DELETE", PUSH_PATH), 404, "not-found")


async def test_a_wrong_schema_is_refused_with_its_place(rig: Rig) -> None:
    wrong = {"versions": [{"version": 1, "schema": {"type": "text"}}]}
    found = problem(await put(rig, entry=wrong), 422, "invalid-event-type")
    assert found["errors"][0]["pointer"] == "/versions/0/schema/type"
    problem(await put(rig, entry={"unknown": 1}), 400, "invalid-request")
    problem(await put(rig, "/v1/event-types/a%0Ab", {}), 422, "invalid-event-type")


async def test_a_source_has_its_payloads_refused_or_counted(rig: Rig) -> None:
    await put(rig)
    assert (await rig.post(MESSAGES, b"{}", content_type="application/json")).status == 202
    rig.directory.event_schemas["github"] = "refuse"
    refused = await rig.post(MESSAGES, b'{"ref": 1}', content_type="application/json")
    found = problem(refused, 422, "invalid-payload")
    assert found["errors"] == [{"pointer": "/ref", "detail": "not valid by type: string"}]
    assert (await rig.post(MESSAGES, b'{"ref": "x"}', content_type="application/json")).status == 202
    other = MESSAGES.replace("push", "unknown")
    assert (await rig.post(other, b"{}", content_type="application/json")).status == 202
    rig.directory.event_schemas["github"] = "count"
    counted = await rig.post(MESSAGES, b"[]", content_type="application/json")
    assert counted.status == 202
    assert "not valid by the schemas of push" in document(counted)["warnings"][0]
    assert METER.faults == ["refuse", "count"]
    assert len(rig.records(rig.topics.from_sender)) == 4


async def test_the_document_of_the_topics_has_a_message_for_each_version(rig: Rig) -> None:
    await put(rig)
    found = document(await rig.get("/v1/asyncapi"))
    message = found["components"]["messages"]["type.push.1"]
    assert message["payload"] == PUSH["versions"][0]["schema"]
    assert message["examples"] == [{"payload": {"ref": "refs/heads/main"}}]
    assert "type.push.1" in found["channels"]["to_receiver"]["messages"]
    assert "push" not in document(await rig.get("/asyncapi.json"))["components"]["messages"]


async def test_the_command_applies_a_file_and_a_trigger_sends_an_example(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "event-types.yaml"
    file.write_text(json.dumps({"event_types": {"push": PUSH, "old": None}}))
    assert await run(rig, "apply", str(file), "--dry-run") == "added: push\nadded: old\nnot applied: dry run\n"
    assert await run(rig, "apply", str(file)) == "added: push\nadded: old\n"
    assert await run(rig, "apply", str(file)) == "nothing to change\n"
    file.write_text(json.dumps({"event_types": {"push": {**PUSH, "deprecated": True}}}))
    assert await run(rig, "apply", str(file), "--prune") == "changed: push\nremoved: old\n"
    assert "push  1         yes         Commits were pushed." in await run(rig, "list")
    assert json.loads(await run(rig, "show", "push"))["deprecated"]
    await run(rig, "push", "--receiver", "ci", "--source", "github", command=trigger)
    assert rig.records(rig.topics.from_sender)[0].value == b'{"ref":"refs/heads/main"}'
    assert await run(rig, "delete", "push", "--yes") == "push: deleted\n"
    file.write_text(json.dumps({"event_types": {"push": {"versions": [{"version": 1, "schema": {"type": 1}}]}}}))
    assert "event_types.push/versions/0/schema/type" in await run(rig, "apply", str(file), fails=True)
    file.write_text(json.dumps({"event_types": {"push": {"schema": {}}}}))
    said = await run(rig, "apply", str(file), fails=True)
    assert "event_types.push.schema: unknown field; known: deprecated, description, versions" in said


async def run(rig: Rig, *args: str, command: Any = events, fails: bool = False) -> str:
    result = await run_command(rig.url, command, *args)
    assert (result.exit_code != 0) == fails, result.output
    return str(result.exception) if fails else result.stdout
