"""Tests of edited copies of messages over the API: what they share with the original, and which callers may make
one."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import Result

from relay.cli.messages import messages
from relay.client import ApiError
from relay.domain.identity import MAX_ID_BYTES, copies_prefix
from relay.domain.message import COPY_OF, Message, parse_message
from tests.integration.api_rig import PAYLOAD_CAP, Reply, Rig, document, problem, run_command, running_api
from tests.integration.api_rig import rig as rig
from tests.integration.test_api_keys import ADMIN, SETTING, bearer

JSON = {"Content-Type": "application/json"}
FIRST = "/v1/sources/github/messages/m-1"


async def send(rig: Rig, more: Mapping[str, str] | None = None) -> None:
    named = {"ce-id": "m-1", "ce-type": "push", "relay-header-x-team": "core", **JSON, **(more or {})}
    assert (await rig.request("POST", "/v1/sources/github/messages?receiver=ci", b'{"n": 1}', named)).status == 202


async def copy(rig: Rig, target: str = FIRST, key: Mapping[str, str] | None = None, **body: Any) -> Reply:
    return await rig.request("POST", f"{target}/copies", json.dumps(body).encode(), JSON | dict(key or {}))


async def on_the_log(rig: Rig, reply: Reply) -> Message:
    place = document(reply)["at"]
    records = rig.records(rig.topics.from_sender)
    [found] = [each for each in records if (each.partition, each.offset) == (place["partition"], place["offset"])]
    return parse_message(found.value, found.headers)


async def test_a_copy_is_a_new_message_with_the_content_of_the_original(rig: Rig) -> None:
    await send(rig)
    reply = await copy(rig)
    assert reply.status == 202
    view = document(reply)
    assert view["message_id"].startswith("m-1.copy-")
    assert (view["copy_of"], view["duplicate"], view["type"]) == ("m-1", False, "push")
    assert reply.headers["Location"] == f"/v1/sources/github/messages/{view['message_id']}"
    message = await on_the_log(rig, reply)
    assert (message.payload, message.receivers, message.content_type) == (b'{"n": 1}', ("ci",), "application/json")
    assert dict(message.headers) == {"x-team": "core", COPY_OF: "m-1"}
    shown = document(await rig.get(f"/v1/sources/github/messages/{view['message_id']}"))
    assert shown["copy_of"] == "m-1"
    assert "copy_of" not in document(await rig.get(FIRST))
    assert document(await rig.request("POST", f"{FIRST}/copies"))["copy_of"] == "m-1"
    assert document(await copy(rig))["message_id"] != view["message_id"]


async def test_what_a_copy_has_of_its_own_replaces_the_originals(rig: Rig) -> None:
    await send(rig)
    payload = base64.b64encode(b"\x00\xff").decode()
    reply = await copy(
        rig, payload_base64=payload, headers={"X-New": "1"}, type="pull", content_type="text/x", receivers=["cd"]
    )
    message = await on_the_log(rig, reply)
    assert (message.payload, message.receivers, message.event_type) == (b"\x00\xff", ("cd",), "pull")
    assert message.content_type == "text/x"
    assert dict(message.headers) == {"x-new": "1", COPY_OF: "m-1"}
    assert (await on_the_log(rig, await copy(rig, payload="é"))).payload == "é".encode()
    assert (await on_the_log(rig, await copy(rig, payload=""))).payload == b""


@pytest.mark.parametrize(
    ("options", "given", "payload"),
    [((), None, b'{"n": 1}'), (("--payload", "-", "--receiver", "cd"), b'{"n": 2}', b'{"n": 2}')],
)
async def test_the_command_sends_a_copy(options: tuple[str, ...], given: bytes | None, payload: bytes) -> None:
    async with running_api() as rig:
        await send(rig)
        result = await run_command(rig.url, messages, "resend", "github", "m-1", *options, "-o", "json", given=given)
        assert result.exit_code == 0, result.output
        assert json.loads(result.output)["copy_of"] == "m-1"
        sent = rig.records(rig.topics.from_sender)[-1]
        message = parse_message(sent.value, sent.headers)
        assert (message.payload, message.receivers) == (payload, ("cd",) if options else ("ci",))


async def test_the_command_shows_how_two_messages_differ(rig: Rig) -> None:
    await send(rig)
    other = document(await copy(rig, payload='{"n": "\x1b[2J"}', type="pull"))["message_id"]

    async def diff(*words: str) -> Result:
        return await run_command(rig.url, messages, "diff", "github", *words)

    found = await diff("m-1", other)
    assert found.exit_code == 1, found.output
    for line in ("Message", "-type: push", "+type: pull", "Payload", '-  "n": 1', '+{"n": "\\x1b[2J"}'):
        assert line in found.output.splitlines()
    same = await diff("m-1", "m-1")
    assert (same.exit_code, same.output.count("no difference")) == (0, 2)
    lines = json.loads((await diff("m-1", other, "-o", "json")).output)
    assert "+type: pull" in lines["message"]


async def test_the_command_says_that_a_message_is_not_known(rig: Rig) -> None:
    result = await run_command(rig.url, messages, "resend", "github", "none")
    assert isinstance(result.exception, ApiError)


async def test_a_copy_of_a_copy_refers_to_that_one(rig: Rig) -> None:
    await send(rig)
    first = document(await copy(rig))["message_id"]
    second = document(await copy(rig, f"/v1/sources/github/messages/{first}"))
    assert (second["copy_of"], second["message_id"].startswith(f"{first}.copy-")) == (first, True)


@pytest.mark.parametrize("message_id", ["ü" * (MAX_ID_BYTES // 2), "x" * MAX_ID_BYTES, "a b%2F"])
async def test_any_id_has_copies(rig: Rig, message_id: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in message_id.encode())
    await send(rig, {"ce-id": encoded})
    reply = await copy(rig, f"/v1/sources/github/messages/{encoded}")
    assert (reply.status, document(reply)["copy_of"]) == (202, message_id)
    assert document(reply)["message_id"].startswith(copies_prefix("github", message_id))


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"payload": "x", "payload_base64": "eA=="}, 400, "invalid-request"),
        ({"payload_base64": "x"}, 400, "invalid-request"),
        ({"payload": "x" * (PAYLOAD_CAP + 1)}, 413, "too-large"),
        ({"headers": {"Authorization": "x"}}, 400, "invalid-request"),
        ({"headers": {"relay-x": "x"}}, 400, "invalid-request"),
        ({"headers": {f"x-{n}": "1" for n in range(16)}}, 400, "invalid-request"),
        ({"type": "x" * 2_000}, 400, "invalid-request"),
        ({"content_type": "application/cloudevents+json"}, 400, "invalid-request"),
        ({"receivers": ["nobody"]}, 422, "unknown-receiver"),
        ({"receivers": []}, 400, "invalid-request"),
        ({"message_id": "m-2"}, 400, "invalid-request"),
    ],
)
async def test_a_wrong_copy_is_refused(rig: Rig, body: dict[str, Any], status: int, kind: str) -> None:
    await send(rig)
    problem(await copy(rig, **body), status, kind)
    assert len(rig.records(rig.topics.from_sender)) == 1


async def test_an_unknown_message_has_no_copy(rig: Rig) -> None:
    problem(await copy(rig), 404, "not-found")


@pytest.mark.parametrize(
    ("scopes", "status"),
    [
        (("ingest:github", "read:github"), 202),
        (("ingest:github",), 403),
        (("read:github",), 403),
        (("ingest:github", "read:other"), 403),
        (("ingest:other", "read:github"), 403),
        (("ingest:github", "receiver:ci"), 403),
    ],
)
async def test_a_copy_takes_the_rights_to_send_and_to_read(scopes: tuple[str, ...], status: int) -> None:
    async with running_api(api_key=SETTING) as rig:
        await send(rig, ADMIN)
        key = bearer(await rig.keys.make(*scopes, now=rig.clock.time()))
        assert (await copy(rig, key=key)).status == status
